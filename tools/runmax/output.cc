#include "output.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "error.h"

namespace runmax::cli {
namespace {

// The temporary files that exist now. The signal thread takes the mutex for good before it removes
// them, so no file can appear, and no set of renames be half done, while the process ends. Never
// destroyed: that thread may outlive main().
struct Temporaries {
  std::mutex mutex;
  std::set<std::string> paths;
};
Temporaries& temporaries() {
  static auto* instance = new Temporaries;
  return *instance;
}

void wait_for_signal(sigset_t signals) {
  int received = 0;
  while (sigwait(&signals, &received) != 0) {
  }
  temporaries().mutex.lock();
  for (const std::string& path : temporaries().paths) ::unlink(path.c_str());
  ::_exit(kExitInterrupted);
}

void sync_directory(const std::string& directory) {
  // Not every file system can; the rename itself has succeeded.
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

void watch_signals() {
  temporaries();
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread(wait_for_signal, signals).detach();
  // A write beyond a limit, or to a closed pipe, is an error message like any other.
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
}

OutputSet::File& OutputSet::add(const std::string& label, const std::string& path) {
  File file;
  file.label = label;
  file.path = path;
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr),
                                                               &std::free);
    if (resolved == nullptr || ::stat(resolved.get(), &info) != 0) {
      fail(label, "is a symbolic link that leads nowhere ({}), must be a regular file or absent",
           printable(path));
    }
    file.path = resolved.get();
    if (!S_ISREG(info.st_mode)) {
      fail(label, "is {} ({}), must be a regular file or absent",
           S_ISDIR(info.st_mode) ? "a directory" : "a special file", printable(path));
    }
    if (::access(file.path.c_str(), W_OK) != 0) {
      fail(label, "cannot be written ({}: {})", printable(path), std::strerror(errno));
    }
    file.exists = true;
    file.mode = info.st_mode & 07777;
  } else if (errno != ENOENT) {
    fail(label, "cannot be written ({}: {})", printable(path), std::strerror(errno));
  }

  const size_t slash = file.path.rfind('/');
  file.directory =
      slash == std::string::npos ? "." : file.path.substr(0, std::max<size_t>(slash, 1));
  struct stat folder {};
  if (file.path.empty() || file.path.back() == '/' ||
      ::stat(file.directory.c_str(), &folder) != 0 || !S_ISDIR(folder.st_mode)) {
    fail(label, "lies in a folder that does not exist ({}), must lie in one that does",
         printable(path));
  }
  if (::access(file.directory.c_str(), W_OK | X_OK) != 0) {
    fail(label, "lies in a folder that cannot be written ({}: {})", printable(path),
         std::strerror(errno));
  }
  const std::string name = file.path.substr(slash == std::string::npos ? 0 : slash + 1);
  const long longest = ::pathconf(file.directory.c_str(), _PC_NAME_MAX);
  if (longest > 0 && name.size() > static_cast<size_t>(longest)) {
    fail(label, "has a name of {} bytes, must have at most {}", name.size(), longest);
  }
  file.device = file.exists ? info.st_dev : folder.st_dev;
  file.inode = file.exists ? info.st_ino : folder.st_ino;

  for (const File& other : files_) {
    const bool same_inode = file.device == other.device && file.inode == other.inode;
    const bool same_name = other.path.substr(other.path.rfind('/') + 1) == name;
    if (file.exists == other.exists && same_inode && (file.exists || same_name)) {
      fail(label, "is the same file as {} ({}), must be another", other.label, printable(path));
    }
  }
  return files_.emplace_back(std::move(file));
}

void OutputSet::refuse_input(const InputFile& input) const {
  for (const File& file : files_) {
    if (file.exists && file.device == input.device() && file.inode == input.inode()) {
      fail(file.label, "is the same file as {} ({}), must be another", input.label(),
           printable(file.path));
    }
  }
}

void OutputSet::open(File& file) {
  const std::lock_guard lock(temporaries().mutex);
  for (int attempt = 0;; ++attempt) {
    const std::string path =
        fmt::format("{}/.runmax-{}-{}.tmp", file.directory, ::getpid(), attempt);
    file.descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.descriptor >= 0) {
      temporaries().paths.insert(path);
      file.temporary = path;
      break;
    }
    if (errno != EEXIST || attempt == 1000) {
      fail(file.label, "cannot be written ({}: {})", printable(file.path), std::strerror(errno));
    }
  }
  if (file.exists) ::fchmod(file.descriptor, file.mode);
}

void OutputSet::File::write(const void* data, size_t bytes) {
  auto* cursor = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(descriptor, cursor, std::min<size_t>(bytes, 1 << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(label, "cannot be written ({}: {})", printable(path), std::strerror(errno));
    cursor += done;
    bytes -= static_cast<size_t>(done);
  }
}

void OutputSet::commit() {
  for (File& file : files_) {
    const bool synced = ::fsync(file.descriptor) == 0;
    const int error = errno;
    const bool closed = ::close(std::exchange(file.descriptor, -1)) == 0;
    if (!synced || !closed) {
      fail(file.label, "cannot be written ({}: {})", printable(file.path),
           std::strerror(synced ? errno : error));
    }
  }
  const std::lock_guard lock(temporaries().mutex);
  for (File& file : files_) {
    if (::rename(file.temporary.c_str(), file.path.c_str()) != 0) {
      fail(file.label, "cannot be put in place ({}: {})", printable(file.path),
           std::strerror(errno));
    }
    temporaries().paths.erase(std::exchange(file.temporary, {}));
  }
  for (const File& file : files_) sync_directory(file.directory);
  files_.clear();
}

void OutputSet::discard(File& file) {
  if (file.descriptor >= 0) ::close(std::exchange(file.descriptor, -1));
  if (file.temporary.empty()) return;
  ::unlink(file.temporary.c_str());
  temporaries().paths.erase(file.temporary);
}

OutputSet::~OutputSet() {
  const std::lock_guard lock(temporaries().mutex);
  for (File& file : files_) discard(file);
}

}  // namespace runmax::cli
