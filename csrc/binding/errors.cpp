#include "errors.h"

#include <stdexcept>

namespace comfuse::binding {

void fail(char const* type, std::string const& text) {
  throw std::runtime_error(std::string("comfuse: [") + type + "] " + text);
}

}  // namespace comfuse::binding
