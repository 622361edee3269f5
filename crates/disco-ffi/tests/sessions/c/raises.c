#include "abi.h"

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

EXPORT(raises) {
  TVMFFIErrorSetRaisedFromCStr("ValueError", "the number is too small");
  return -1;
}

EXPORT(add1) {
  result->type = INT;
  result->i = args[0].i + 1;
  return 0;
}
