#include "abi.h"

/* libtvm_ffi stores the module here, as in libraries that TVM compiles: the C++ object, whose header is behind the
   address of its virtual functions. */
void *__tvm_ffi__library_ctx;

EXPORT(module) {
  result->type = INT;
  result->i = __tvm_ffi__library_ctx ? ((Object *)((char *)__tvm_ffi__library_ctx + sizeof(void *)))->type : 0;
  return 0;
}
