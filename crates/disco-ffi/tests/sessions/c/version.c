/* A libtvm_ffi of another version of the ABI. */
#include <stdint.h>

void TVMFFIGetVersion(uint32_t *version) {
  version[0] = 0;
  version[1] = 9;
  version[2] = 3;
}
