// Errors that reach Python.  A message begins with "comfuse: [Type] "; comfuse/ops turns it into
// comfuse.errors.Type again.  The text of an ArgumentError (ShapeError, DTypeError, DeviceError) reads
// "<argument> is <what was got>; allowed: <what may be>".
#pragma once

#include <string>

namespace comfuse::binding {

// Throws std::runtime_error("comfuse: [type] text"), which torch passes on as a RuntimeError.
[[noreturn]] void fail(char const* type, std::string const& text);

// Throws if a call of torch's C interface failed; torch has then already printed the reason.
inline void check(int error, char const* what) {
  if (error != 0) fail("LaunchError", std::string("torch refused: ") + what);
}

}  // namespace comfuse::binding
