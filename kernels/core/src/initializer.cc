#include "mxrec/initializer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "hash.h"
#include "philox.h"

namespace mxrec {
namespace {

constexpr int kBlock = 4;          // values of one Philox call
constexpr int kBlocksAtOnce = 16;  // in one pass over a row
constexpr int kPairsAtOnce = kBlocksAtOnce * kBlock / 2;
constexpr float kTruncation = 2.0f;

std::array<uint32_t, 4> Bits(uint64_t seed, Key key, uint32_t block,
                             uint32_t redraw) {
  const uint64_t k = static_cast<uint64_t>(key);
  return Philox4x32(
      {static_cast<uint32_t>(k), static_cast<uint32_t>(k >> 32), block, redraw},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// 24 bits: every value is exact in a float, and 1 is never reached.
float UnitFloat(uint32_t bits) {
  return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f);
}

int32_t AsInt(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

float AsFloat(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// The functions below are written for loops that become vector code; their
// errors are a few units in the last place.

// Natural logarithm of a normal float > 0, by the series of the inverse
// hyperbolic tangent.
inline float Log(float x) {
  // x = m * 2^k with m in [sqrt(1/2), sqrt(2)).
  constexpr int32_t kSqrtHalf = 0x3F3504F3;
  const int32_t bits = AsInt(x);
  const int32_t k = (bits - kSqrtHalf) >> 23;
  const float m = AsFloat(bits - k * (1 << 23));
  const float s = (m - 1.0f) / (m + 1.0f);
  const float z = s * s;
  const float series =
      1.0f + z * (1.0f / 3 + z * (1.0f / 5 + z * (1.0f / 7 + z * (1.0f / 9))));
  return 2.0f * s * series + static_cast<float>(k) * 0.693147181f;
}

// Box and Muller (1958): a pair of uniforms gives a pair of normals.
inline void NormalPair(uint32_t radius_bits, uint32_t angle_bits, float* first,
                       float* second) {
  // In (0, 1], so that the logarithm is finite.
  const float u =
      (static_cast<float>(static_cast<int32_t>(radius_bits >> 1)) + 0.5f) *
      0x1p-31f;
  const float radius = std::sqrt(-2.0f * Log(u));
  // The angle is a quarter turn, chosen by two bits, and t in a quarter turn
  // around 0, where the series of sine and cosine are short.
  const float t = static_cast<float>(static_cast<int32_t>(angle_bits << 2)) *
                  (0.785398163f * 0x1p-31f);
  const float z = t * t;
  const float sine =
      t * (1.0f +
           z * (-1.0f / 6 +
                z * (1.0f / 120 + z * (-1.0f / 5040 + z * (1.0f / 362880)))));
  const float cosine =
      1.0f + z * (-1.0f / 2 +
                  z * (1.0f / 24 + z * (-1.0f / 720 + z * (1.0f / 40320))));
  const bool odd = (angle_bits & 0x40000000u) != 0;
  const float signed_radius =
      AsFloat(AsInt(radius) ^ static_cast<int32_t>(angle_bits & 0x80000000u));
  *first = signed_radius * (odd ? -sine : cosine);
  *second = signed_radius * (odd ? cosine : sine);
}

// The 4 * `blocks` standard normals of the columns from 4 * first_block on, as
// drawn first; blocks <= kBlocksAtOnce.
void Normals(uint64_t seed, Key key, int first_block, int blocks,
             float* normals) {
  uint32_t radius_bits[kPairsAtOnce];
  uint32_t angle_bits[kPairsAtOnce];
  for (int b = 0; b < blocks; ++b) {
    const auto bits =
        Bits(seed, key, static_cast<uint32_t>(first_block + b), 0);
    radius_bits[2 * b] = bits[0];
    angle_bits[2 * b] = bits[1];
    radius_bits[2 * b + 1] = bits[2];
    angle_bits[2 * b + 1] = bits[3];
  }
  for (int i = 0; i < 2 * blocks; ++i) {
    NormalPair(radius_bits[i], angle_bits[i], &normals[2 * i],
               &normals[2 * i + 1]);
  }
}

void FillUniform(const InitializerOptions& options, Key key, int dim,
                 float* row) {
  const float low = static_cast<float>(options.a * options.scale);
  const float high = static_cast<float>(options.b * options.scale);
  const float width = high - low;
  // Rounding must not give `high` itself.
  const float last = std::nextafter(high, low);
  const float least = std::min(low, last);
  const float most = std::max(low, last);
  for (int first = 0; first < dim; first += kBlock) {
    const auto bits =
        Bits(options.seed, key, static_cast<uint32_t>(first / kBlock), 0);
    const int count = std::min(kBlock, dim - first);
    for (int i = 0; i < count; ++i) {
      row[first + i] =
          std::min(std::max(low + width * UnitFloat(bits[i]), least), most);
    }
  }
}

// Each column redraws on its own, so a value depends on its column alone.
float RedrawNormal(uint64_t seed, Key key, int column) {
  const uint32_t block = static_cast<uint32_t>(column / kBlock);
  const int pair = column % kBlock / 2;
  for (uint32_t redraw = 1;; ++redraw) {
    const auto bits = Bits(seed, key, block, redraw);
    float normals[2];
    NormalPair(bits[2 * pair], bits[2 * pair + 1], &normals[0], &normals[1]);
    const float x = normals[column % 2];
    if (std::abs(x) <= kTruncation) return x;
  }
}

void FillNormal(const InitializerOptions& options, Key key, int dim,
                bool truncated, float* row) {
  const float mean = static_cast<float>(options.a * options.scale);
  const float stddev = static_cast<float>(options.b * options.scale);
  constexpr int kColumns = kBlocksAtOnce * kBlock;
  for (int first = 0; first < dim; first += kColumns) {
    const int count = std::min(kColumns, dim - first);
    float normals[kColumns];
    Normals(options.seed, key, first / kBlock, (count + kBlock - 1) / kBlock,
            normals);
    if (truncated) {
      for (int i = 0; i < count; ++i) {
        if (std::abs(normals[i]) > kTruncation) {
          normals[i] = RedrawNormal(options.seed, key, first + i);
        }
      }
    }
    for (int i = 0; i < count; ++i) {
      row[first + i] = mean + stddev * normals[i];
    }
  }
}

void FillFromPool(const InitializerOptions& options, Key key, int dim,
                  float* row) {
  const int64_t rows = static_cast<int64_t>(options.pool.size()) / dim;
  const uint64_t hash =
      HashKey(key ^ static_cast<Key>(HashKey(static_cast<Key>(options.seed))));
  const int64_t chosen = static_cast<int64_t>(
      (static_cast<unsigned __int128>(hash) * static_cast<uint64_t>(rows)) >>
      64);
  const float* from = options.pool.data() + chosen * dim;
  for (int i = 0; i < dim; ++i) row[i] = from[i] * options.scale;
}

}  // namespace

Initializer::Initializer(InitializerOptions options, int dim)
    : options_(std::move(options)), dim_(dim) {}

void Initializer::Fill(Key key, float* row) const {
  switch (options_.kind) {
    case InitializerKind::kConstant:
      std::fill_n(row, dim_, static_cast<float>(options_.a * options_.scale));
      return;
    case InitializerKind::kUniform:
      return FillUniform(options_, key, dim_, row);
    case InitializerKind::kNormal:
      return FillNormal(options_, key, dim_, /*truncated=*/false, row);
    case InitializerKind::kTruncatedNormal:
      return FillNormal(options_, key, dim_, /*truncated=*/true, row);
    case InitializerKind::kPool:
      return FillFromPool(options_, key, dim_, row);
  }
}

}  // namespace mxrec
