#include "abi.h"

int nobody_defines_this(void);

EXPORT(calls_nobody) { return nobody_defines_this(); }
