/* The part of the TVM-FFI C ABI that the test libraries use. */
#include <stdint.h>
#include <stddef.h>

typedef struct {
  int32_t type;
  uint32_t small_len;
  union {
    int64_t i;
    double f;
    void *p;
    char bytes[8];
  };
} Any;

typedef struct Object {
  uint64_t counts;
  int32_t type;
  uint32_t padding;
  void (*deleter)(void *, int);
} Object;

typedef struct {
  int32_t device_type, device_id;
} Device;

typedef struct {
  void *data;
  Device device;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;

typedef int (*SafeCall)(void *, const Any *, int32_t, Any *);

enum { NONE, INT, BOOL, FLOAT, POINTER, DTYPE, DEVICE, SMALL_STR = 11, STR = 65, FUNCTION = 68, SHAPE, TENSOR, ARRAY };

#define EXPORT(name) int __tvm_ffi_##name(void *self, const Any *args, int32_t count, Any *result)

static inline void take(const Any *from, Any *to) {
  if (from->type >= 64) __atomic_fetch_add(&((Object *)from->p)->counts, 1, __ATOMIC_RELAXED);
  *to = *from;
}
