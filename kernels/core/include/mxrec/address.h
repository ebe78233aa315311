// The bit layout of an address. See "Addresses" in docs/architecture.md.
#ifndef MXREC_ADDRESS_H_
#define MXREC_ADDRESS_H_

#include <cstdint>

namespace mxrec {

// Opaque outside the core: 0 means "no row"; all others are positive.
using Address = int64_t;
using Key = int64_t;
using RowIndex = uint32_t;

constexpr Address kNoRow = 0;
constexpr int kRowBits = 32;
constexpr int kGenerationBits = 11;
constexpr int kNonceBits = 20;
static_assert(kRowBits + kGenerationBits + kNonceBits == 63,
              "an address is a positive int64");

constexpr uint32_t kMaxGeneration = (1u << kGenerationBits) - 1;
constexpr uint32_t kMaxNonce = (1u << kNonceBits) - 1;

// `nonce` is in [1, kMaxNonce], so that an address is never 0.
constexpr Address MakeAddress(uint32_t nonce, uint32_t generation,
                              RowIndex row) {
  return static_cast<Address>(
      (static_cast<uint64_t>(nonce) << (kRowBits + kGenerationBits)) |
      (static_cast<uint64_t>(generation) << kRowBits) | row);
}
constexpr RowIndex RowOf(Address a) {
  return static_cast<RowIndex>(static_cast<uint64_t>(a) & 0xFFFFFFFFu);
}
constexpr uint32_t GenerationOf(Address a) {
  return static_cast<uint32_t>((static_cast<uint64_t>(a) >> kRowBits) &
                               kMaxGeneration);
}
// A negative address yields a nonce above kMaxNonce, which no table has.
constexpr uint32_t NonceOf(Address a) {
  return static_cast<uint32_t>(static_cast<uint64_t>(a) >>
                               (kRowBits + kGenerationBits));
}

}  // namespace mxrec

#endif  // MXREC_ADDRESS_H_
