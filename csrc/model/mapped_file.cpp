#include "model/mapped_file.h"

#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/check.h"
#include "common/printable.h"

namespace flarecore {
namespace {

constexpr size_t kMaxPathBytes = 512;  // of a path in a message

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

std::string reason() { return std::generic_category().message(errno); }

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  const std::string shown = printable(path, kMaxPathBytes);
  const auto ensure = [&](bool condition, const auto&... why) {
    check(condition, ErrorKind::kModelFile, shown, ": ", why...);
  };
  ensure(path.find('\0') == std::string::npos, "the path has a NUL character");
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  ensure(file.fd >= 0, "cannot open the file: ", reason());
  struct stat info;
  ensure(::fstat(file.fd, &info) == 0, "cannot read the file's size: ", reason());
  ensure(S_ISREG(info.st_mode), "not a regular file; give the path of the model file itself");
  ensure(info.st_size > 0, "the file is empty; download it again");
  ensure(static_cast<uint64_t>(info.st_size) <= std::numeric_limits<size_t>::max(),
         "the file has ", info.st_size, " bytes, more than this machine can address");
  const size_t size = static_cast<size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  ensure(data != MAP_FAILED, "cannot map the file into memory: ", reason());
  return std::shared_ptr<const MappedFile>(
      new MappedFile(path, static_cast<const uint8_t*>(data), size));
}

MappedFile::~MappedFile() { ::munmap(const_cast<uint8_t*>(data_), size_); }

}  // namespace flarecore
