// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011).
#ifndef MXREC_SRC_PHILOX_H_
#define MXREC_SRC_PHILOX_H_

#include <array>
#include <cstdint>

namespace mxrec {

inline std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  constexpr uint64_t kMul0 = 0xD2511F53;
  constexpr uint64_t kMul1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;
  constexpr uint32_t kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMul0 * counter[0];
    const uint64_t product1 = kMul1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

}  // namespace mxrec

#endif  // MXREC_SRC_PHILOX_H_
