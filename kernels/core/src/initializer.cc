#include "mxrec/initializer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "hash.h"
#include "philox.h"

namespace mxrec {
namespace {

constexpr int kBlock = 4;  // values of one Philox call
constexpr double kTwoPi = 6.283185307179586476925286766559;
constexpr double kTruncation = 2.0;

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

// Box and Muller (1958): two uniforms give two normals.
std::array<double, 4> Normals(const std::array<uint32_t, 4>& bits) {
  std::array<double, 4> normals;
  for (int pair = 0; pair < 4; pair += 2) {
    // In (0, 1], so that the logarithm is finite.
    const double u = (static_cast<double>(bits[pair]) + 1.0) * 0x1p-32;
    const double angle = kTwoPi * static_cast<double>(bits[pair + 1]) * 0x1p-32;
    const double radius = std::sqrt(-2.0 * std::log(u));
    normals[pair] = radius * std::cos(angle);
    normals[pair + 1] = radius * std::sin(angle);
  }
  return normals;
}

// Each column redraws on its own, so a value depends on its column alone.
double TruncatedNormal(uint64_t seed, Key key, int column) {
  const uint32_t block = static_cast<uint32_t>(column / kBlock);
  for (uint32_t redraw = 0;; ++redraw) {
    const double x = Normals(Bits(seed, key, block, redraw))[column % kBlock];
    if (std::abs(x) <= kTruncation) return x;
  }
}

void FillUniform(const InitializerOptions& options, Key key, int dim,
                 float* row) {
  const float low = static_cast<float>(options.a * options.scale);
  const float width =
      static_cast<float>((options.b - options.a) * options.scale);
  for (int first = 0; first < dim; first += kBlock) {
    const auto bits =
        Bits(options.seed, key, static_cast<uint32_t>(first / kBlock), 0);
    const int count = std::min(kBlock, dim - first);
    for (int i = 0; i < count; ++i) {
      row[first + i] = low + width * UnitFloat(bits[i]);
    }
  }
}

void FillNormal(const InitializerOptions& options, Key key, int dim,
                float* row) {
  for (int first = 0; first < dim; first += kBlock) {
    const auto normals = Normals(
        Bits(options.seed, key, static_cast<uint32_t>(first / kBlock), 0));
    const int count = std::min(kBlock, dim - first);
    for (int i = 0; i < count; ++i) {
      row[first + i] = static_cast<float>((options.a + options.b * normals[i]) *
                                          options.scale);
    }
  }
}

void FillTruncatedNormal(const InitializerOptions& options, Key key, int dim,
                         float* row) {
  for (int first = 0; first < dim; first += kBlock) {
    const auto normals = Normals(
        Bits(options.seed, key, static_cast<uint32_t>(first / kBlock), 0));
    const int count = std::min(kBlock, dim - first);
    for (int i = 0; i < count; ++i) {
      const double x = std::abs(normals[i]) <= kTruncation
                           ? normals[i]
                           : TruncatedNormal(options.seed, key, first + i);
      row[first + i] =
          static_cast<float>((options.a + options.b * x) * options.scale);
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
      return FillNormal(options_, key, dim_, row);
    case InitializerKind::kTruncatedNormal:
      return FillTruncatedNormal(options_, key, dim_, row);
    case InitializerKind::kPool:
      return FillFromPool(options_, key, dim_, row);
  }
}

}  // namespace mxrec
