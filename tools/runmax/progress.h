// One line on a terminal that says what is going on and since when. Nowhere else: not in a pipe,
// not with --quiet. No colour and no cursor commands, so there is nothing for NO_COLOR to turn off.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace runmax::cli {

class Progress {
 public:
  Progress(std::string what, bool quiet);
  ~Progress();  // wipes the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void show();

  std::string what_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace runmax::cli
