// Files that appear whole or not at all. Every output is written beside its destination and synced;
// when all are, they are renamed into place. Whatever ends the command before that (an error, a
// full disk, Ctrl-C) leaves the destinations as they were and no temporary file behind.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "input_file.h"

namespace runmax::cli {

// From here on SIGINT, SIGTERM and SIGHUP remove the temporary files and exit with 130. Call before
// any thread is started: it blocks the signals in the caller and in every thread made later.
void watch_signals();

class OutputSet {
 public:
  class File {
   public:
    void write(const void* data, size_t bytes);
    void write(std::string_view text) { write(text.data(), text.size()); }

   private:
    friend class OutputSet;
    std::string label;  // names the file in messages: "OUT", "--lse"
    std::string path;   // where it goes, symbolic links resolved
    std::string directory;
    std::string temporary;  // empty while there is none
    int descriptor = -1;
    bool exists = false;
    mode_t mode = 0;
    dev_t device = 0;  // of the file if it exists, else of its directory
    ino_t inode = 0;
  };

  OutputSet() = default;
  ~OutputSet();
  OutputSet(const OutputSet&) = delete;
  OutputSet& operator=(const OutputSet&) = delete;

  // Refuses, before any work is done, a destination that is neither absent nor a regular file,
  // whose folder is missing or read-only, or that another output has. Creates nothing yet.
  File& add(const std::string& label, const std::string& path);
  // Refuses an input that is one of the destinations, by whatever name.
  void refuse_input(const InputFile& input) const;

  // Starts writing: creates the temporary file.
  void open(File& file);
  // All files are written and synced: puts them in place.
  void commit();

 private:
  void discard(File& file);
  std::deque<File> files_;
};

}  // namespace runmax::cli
