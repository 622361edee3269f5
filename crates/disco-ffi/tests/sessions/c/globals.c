/* Calls global functions of libtvm_ffi, as code does that TVM compiles. */
#include "abi.h"

typedef struct {
  const char *data;
  size_t size;
} Bytes;

int TVMFFIFunctionGetGlobal(const Bytes *name, void **out);
int TVMFFIFunctionCall(void *function, Any *args, int32_t count, Any *result);
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
int TVMFFIObjectDecRef(void *object);
int TVMFFIStringFromByteArray(const Bytes *bytes, Any *out);

/* (name, arguments...): the result of the global function. */
EXPORT(call_global) {
  const Bytes *name = (const Bytes *)((Object *)args[0].p + 1);
  void *function = NULL;
  if (TVMFFIFunctionGetGlobal(name, &function) || !function) {
    TVMFFIErrorSetRaisedFromCStr("NameError", "there is no such global function");
    return -1;
  }
  int code = TVMFFIFunctionCall(function, (Any *)args + 1, count - 1, result);
  TVMFFIObjectDecRef(function);
  return code;
}

static int32_t *ints(const Any *tensor) {
  const Tensor *cell = tensor->type == TENSOR ? (const Tensor *)((Object *)tensor->p + 1) : tensor->p;
  return (int32_t *)((char *)cell->data + cell->byte_offset);
}

static const Tensor *cell(const Any *tensor) {
  return tensor->type == TENSOR ? (const Tensor *)((Object *)tensor->p + 1) : tensor->p;
}

/* (weights of [rows, columns], parts, out of [parts, rows, columns / parts]): cuts columns, and adds 100. */
EXPORT(cut_columns) {
  int64_t rows = cell(args)->shape[0], columns = cell(args)->shape[1], parts = args[1].i;
  if (cell(args + 2)->shape[0] != parts || columns % parts) {
    TVMFFIErrorSetRaisedFromCStr("ValueError", "the columns can't be cut so");
    return -1;
  }
  int64_t width = columns / parts;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t column = 0; column < columns; column++)
      ints(args + 2)[(column / width * rows + row) * width + column % width] = ints(args)[row * columns + column] + 100;
  return 0;
}

/* The shard info of two workers, as a module of a model has it. */
EXPORT(get_shard_info) {
  static const char info[] = "{\"param_0\": [[\"cut_columns\", [[2, 2, 2], \"int32\"], 2]]}";
  Bytes bytes = {info, sizeof info - 1};
  return TVMFFIStringFromByteArray(&bytes, result);
}
