#include <stdio.h>
#include <unistd.h>
#include "abi.h"

static char path[256];

/* The first argument is a string of 8 or more bytes: where a line is left when the library is closed. */
EXPORT(leave) {
  struct { const char *data; size_t size; } *text = (void *)((Object *)args[0].p + 1);
  snprintf(path, sizeof path, "%.*s.%d", (int)text->size, text->data, (int)getpid());
  return 0;
}

__attribute__((destructor)) static void closed(void) {
  FILE *file = path[0] ? fopen(path, "a") : 0;
  if (file) {
    fputs("closed\n", file);
    fclose(file);
  }
}
