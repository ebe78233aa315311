#include <array>
#include <cstring>

#include "mxrec/checkpoint.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace mxrec {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // reflected

std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table;
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    }
    table[i] = crc;
  }
  return table;
}

uint32_t Portable(uint32_t crc, const uint8_t* p, size_t n) {
  static const std::array<uint32_t, 256> table = MakeTable();
  for (size_t i = 0; i < n; ++i) {
    crc = (crc >> 8) ^ table[(crc ^ p[i]) & 0xFF];
  }
  return crc;
}

#if defined(__x86_64__)

// The instruction gives its result three cycles later but takes a word each
// cycle; so three lanes of so many bytes run beside each other.
constexpr size_t kLane = 2048;

__attribute__((target("sse4.2"))) uint32_t OneLane(uint32_t crc,
                                                   const uint8_t* p, size_t n) {
  uint64_t wide = crc;
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; n > 0; ++p, --n) crc = _mm_crc32_u8(crc, *p);
  return crc;
}

// What kLane bytes of zeros make of a checksum, byte by byte of it: they act on
// each bit alone.
using LaneTable = std::array<std::array<uint32_t, 256>, 4>;

LaneTable MakeLaneTable() {
  static const uint8_t zeros[kLane] = {};
  LaneTable table = {};
  for (int byte = 0; byte < 4; ++byte) {
    for (uint32_t bit = 0; bit < 8; ++bit) {
      const uint32_t moved =
          OneLane(uint32_t{1} << (8 * byte + bit), zeros, kLane);
      for (uint32_t value = 0; value < 256; ++value) {
        if ((value >> bit & 1) != 0) table[byte][value] ^= moved;
      }
    }
  }
  return table;
}

uint32_t BehindALane(const LaneTable& table, uint32_t crc) {
  return table[0][crc & 0xFF] ^ table[1][crc >> 8 & 0xFF] ^
         table[2][crc >> 16 & 0xFF] ^ table[3][crc >> 24];
}

__attribute__((target("sse4.2"))) uint32_t Hardware(uint32_t crc,
                                                    const uint8_t* p,
                                                    size_t n) {
  if (n < 3 * kLane) return OneLane(crc, p, n);
  static const LaneTable table = MakeLaneTable();
  for (; n >= 3 * kLane; p += 3 * kLane, n -= 3 * kLane) {
    uint64_t first = crc;
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      uint64_t words[3];
      std::memcpy(&words[0], p + i, 8);
      std::memcpy(&words[1], p + kLane + i, 8);
      std::memcpy(&words[2], p + 2 * kLane + i, 8);
      first = _mm_crc32_u64(first, words[0]);
      second = _mm_crc32_u64(second, words[1]);
      third = _mm_crc32_u64(third, words[2]);
    }
    crc = BehindALane(table, static_cast<uint32_t>(first)) ^
          static_cast<uint32_t>(second);
    crc = BehindALane(table, crc) ^ static_cast<uint32_t>(third);
  }
  return OneLane(crc, p, n);
}

bool HasHardware() {
  static const bool has = __builtin_cpu_supports("sse4.2");
  return has;
}

#endif

}  // namespace

uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
#if defined(__x86_64__)
  if (HasHardware()) return ~Hardware(~crc, p, bytes);
#endif
  return ~Portable(~crc, p, bytes);
}

}  // namespace mxrec
