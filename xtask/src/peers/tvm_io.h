// A stand-in for a header that the wheel of TVM lacks and its own headers include. The driver uses no stream.
#pragma once
#include <cstddef>
namespace tvm::support {
struct Stream {
  template <typename... T> bool Read(T...) { return false; }
  template <typename... T> void Write(T...) {}
  template <typename... T> bool ReadArray(T...) { return false; }
  template <typename... T> void WriteArray(T...) {}
};
}
