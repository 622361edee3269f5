#include <stdlib.h>
#include <string.h>
#include "abi.h"

EXPORT(add4) {
  int64_t sum = 0;
  for (int32_t i = 0; i < count; i++) sum += args[i].i;
  result->type = INT;
  result->i = sum;
  return 0;
}

EXPORT(identity) {
  if (count != 1) return -1;
  take(args, result);
  return 0;
}

EXPORT(type_of) {
  result->type = INT;
  result->i = args[0].type;
  return 0;
}

/* Multiplies float32 elements in place and returns their address. */
EXPORT(scale) {
  Tensor *tensor = (Tensor *)((Object *)args[0].p + 1);
  float *elements = (float *)((char *)tensor->data + tensor->byte_offset);
  int64_t n = 1;
  for (int32_t i = 0; i < tensor->ndim; i++) n *= tensor->shape[i];
  for (int64_t i = 0; i < n; i++) elements[i] *= args[1].f;
  result->type = INT;
  result->i = (int64_t)(intptr_t)elements;
  return 0;
}

/* Calls its first argument with the others. */
EXPORT(apply) {
  Object *function = args[0].p;
  SafeCall call = *(SafeCall *)(function + 1);
  return call(function, args + 1, count - 1, result);
}

static float lent_elements[3] = {1, 2, 3};
static int64_t lent_shape[1] = {3};

/* Calls its argument with a tensor that it only lends. */
EXPORT(lends) {
  Tensor tensor = {lent_elements, {1, 0}, 1, 2, 32, 1, lent_shape, 0, 0};
  Any arg = {7, 0, .p = &tensor};
  Object *function = args[0].p;
  return (*(SafeCall *)(function + 1))(function, &arg, 1, result);
}

/* Calls its argument with a C string, with bytes behind a pointer, and with an object that it may take over. */
EXPORT(passes_pointers) {
  struct { const char *data; size_t size; } bytes = {"\1\2", 2};
  Object *moved = args[1].p;
  Any pointers[3] = {{8, 0, .p = "text"}, {9, 0, .p = &bytes}, {10, 0, .p = &moved}};
  Object *function = args[0].p;
  return (*(SafeCall *)(function + 1))(function, pointers, 3, result);
}

/* Calls its argument on a thread of its own. */
#include <pthread.h>

static const Any *thread_args;
static Any *thread_result;
static int thread_code;

static void *on_thread(void *unused) {
  Object *function = thread_args[0].p;
  thread_code = (*(SafeCall *)(function + 1))(function, 0, 0, thread_result);
  return unused;
}

EXPORT(calls_on_a_thread) {
  pthread_t thread;
  thread_args = args;
  thread_result = result;
  pthread_create(&thread, 0, on_thread, 0);
  pthread_join(thread, 0);
  return thread_code;
}

EXPORT(fails_without_an_error) { return 5; }

EXPORT(crashes) {
  *(volatile int *)0 = 1;
  return 0;
}

/* Returns a value of the type in its first argument, with the content of the second. */
EXPORT(returns) {
  result->type = (int32_t)args[0].i;
  result->i = args[1].i;
  return 0;
}

/* An object that says it is a string. */
EXPORT(returns_a_lie) {
  static Object lie = {1u << 20 | (1ull << 32), STR, 0, 0};
  result->type = TENSOR;
  result->p = &lie;
  return 0;
}

EXPORT(returns_a_long_small_string) {
  result->type = SMALL_STR;
  result->small_len = 9;
  return 0;
}

EXPORT(returns_no_utf8) {
  result->type = SMALL_STR;
  result->small_len = 2;
  memcpy(result->bytes, "a\xff", 2);
  return 0;
}

/* An object of an own type, whose deleter is in this library. */
static int deleted;

static void delete_own(void *object, int flags) {
  deleted++;
  if (flags & 2) free(object);
}

EXPORT(own_object) {
  Object *object = calloc(1, sizeof(Object) + 8);
  object->counts = 1 | 1ull << 32;
  object->type = 200;
  object->deleter = delete_own;
  result->type = 200;
  result->p = object;
  return 0;
}

EXPORT(deleted) {
  result->type = INT;
  result->i = deleted;
  return 0;
}
