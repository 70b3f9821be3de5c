// Typed errors of the core and the checks that raise them.
//
// The kinds mirror the Python classes in flarecore/errors.py; bindings/ turns one into the other.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace flarecore {

enum class ErrorKind {
  kConfig,           // ConfigError: an argument or option is wrong
  kModelFile,        // ModelFileError: a model file is damaged, hostile or not supported
  kContextOverflow,  // ContextOverflowError: more tokens than the context holds
  kOutOfBlocks,      // OutOfBlocksError: the KV cache budget is used up
  kSequenceBusy,     // SequenceBusyError: an operation already runs on the sequence
  kCancelled,        // CancelledError: the operation was cancelled
  kDeadline,         // DeadlineExceeded: the operation's deadline passed
  kClosed,           // ClosedError: the engine or the sequence was closed
  kUnsupported,      // UnsupportedError: valid, but not built or not available here
  kIndexFile,        // IndexFileError: an index file is damaged or hostile
  kInternal,         // FlarecoreError: an invariant of ours was broken
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Joins its arguments into one message: fail(kind, "got ", n, " of ", limit).
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  throw Error(kind, out.str());
}

template <typename... Args>
void check(bool condition, ErrorKind kind, const Args&... args) {
  if (!condition) fail(kind, args...);
}

}  // namespace flarecore
