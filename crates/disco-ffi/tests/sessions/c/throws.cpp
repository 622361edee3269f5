#include <stdexcept>

extern "C" int __tvm_ffi_throws(void *, const void *, int, void *) { throw std::runtime_error("thrown through"); }
