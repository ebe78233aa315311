#include "mxrec/initializer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "philox.h"
#include "tests/testing.h"

namespace mxrec {
namespace {

InitializerOptions Make(InitializerKind kind, double a, double b,
                        uint64_t seed = 1) {
  InitializerOptions options;
  options.kind = kind;
  options.a = a;
  options.b = b;
  options.seed = seed;
  return options;
}

std::vector<float> Row(const InitializerOptions& options, int dim, Key key) {
  std::vector<float> row(dim, -99.0f);
  Initializer(options, dim).Fill(key, row.data());
  return row;
}

// Rows of keys 0, 1, ... one behind the other.
std::vector<double> Sample(const InitializerOptions& options, int dim,
                           int64_t keys) {
  const Initializer initializer(options, dim);
  std::vector<double> all;
  std::vector<float> row(dim);
  for (Key key = 0; key < keys; ++key) {
    initializer.Fill(key, row.data());
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

struct Moments {
  double mean = 0;
  double variance = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
};

Moments MomentsOf(const std::vector<double>& x) {
  Moments m;
  for (double v : x) {
    m.mean += v / x.size();
    m.min = std::min(m.min, v);
    m.max = std::max(m.max, v);
  }
  for (double v : x) m.variance += (v - m.mean) * (v - m.mean) / x.size();
  return m;
}

double NormalCdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

// Greatest distance between the empirical distribution and `cdf`, times
// sqrt(n): above 1.95 once in a thousand samples of the right distribution.
template <typename Cdf>
double KolmogorovSmirnov(std::vector<double> x, Cdf cdf) {
  std::sort(x.begin(), x.end());
  const double n = static_cast<double>(x.size());
  double distance = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double f = cdf(x[i]);
    distance = std::max({distance, f - i / n, (i + 1) / n - f});
  }
  return distance * std::sqrt(n);
}

// Correlation of x[i] and x[i + lag], times sqrt(n): about a standard normal
// if they are independent.
double Correlation(const std::vector<double>& x, size_t lag) {
  const Moments m = MomentsOf(x);
  double sum = 0;
  for (size_t i = 0; i + lag < x.size(); ++i) {
    sum += (x[i] - m.mean) * (x[i + lag] - m.mean);
  }
  return sum / m.variance / std::sqrt(static_cast<double>(x.size()));
}

TEST(Philox_KnownAnswers) {
  const std::array<uint32_t, 4> zeros = Philox4x32(
      std::array<uint32_t, 4>{0, 0, 0, 0}, std::array<uint32_t, 2>{0, 0});
  const std::array<uint32_t, 4> expected_zeros = {0x6627e8d5, 0xe169c58d,
                                                  0xbc57ac4c, 0x9b00dbd8};
  const uint32_t f = 0xffffffff;
  const std::array<uint32_t, 4> ones = Philox4x32(
      std::array<uint32_t, 4>{f, f, f, f}, std::array<uint32_t, 2>{f, f});
  const std::array<uint32_t, 4> expected_ones = {0x408f276d, 0x41c83b0e,
                                                 0xa20bc7c6, 0x6d5451fd};
  const std::array<uint32_t, 4> pi = Philox4x32(
      std::array<uint32_t, 4>{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
      std::array<uint32_t, 2>{0xa4093822, 0x299f31d0});
  const std::array<uint32_t, 4> expected_pi = {0xd16cfe09, 0x94fdcceb,
                                               0x5001e420, 0x24126ea1};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(zeros[i], expected_zeros[i]);
    EXPECT_EQ(ones[i], expected_ones[i]);
    EXPECT_EQ(pi[i], expected_pi[i]);
  }
}

TEST(Initializer_Constant) {
  for (int dim : {1, 5, 64}) {
    for (float v : Row(Make(InitializerKind::kConstant, 0.25, 7), dim, 3)) {
      EXPECT_EQ(v, 0.25f);
    }
  }
}

TEST(Initializer_UniformStatistics) {
  const auto x = Sample(Make(InitializerKind::kUniform, -0.5, 1.5), 20, 20000);
  const Moments m = MomentsOf(x);
  EXPECT_NEAR(m.mean, 0.5, 0.004);
  EXPECT_NEAR(m.variance, 4.0 / 12, 0.003);
  EXPECT_LE(-0.5, m.min);
  EXPECT_LT(m.max, 1.5);
  EXPECT_LT(m.min, -0.499);
  EXPECT_LT(1.499, m.max);
  EXPECT_LT(KolmogorovSmirnov(x, [](double v) { return (v + 0.5) / 2; }), 1.95);
}

TEST(Initializer_UniformExcludesItsUpperEnd) {
  // Few floats lie between a and b, so rounding up would often give b.
  const double a = 1;
  const double b = 1 + std::ldexp(1, -20);
  const Moments m =
      MomentsOf(Sample(Make(InitializerKind::kUniform, a, b), 8, 5000));
  EXPECT_LE(a, m.min);
  EXPECT_LT(m.max, b);
}

TEST(Initializer_NormalStatistics) {
  const auto x = Sample(Make(InitializerKind::kNormal, 2, 0.5), 19, 20000);
  const Moments m = MomentsOf(x);
  EXPECT_NEAR(m.mean, 2, 0.004);
  EXPECT_NEAR(m.variance, 0.25, 0.003);
  // Both tails are there, and no value is absurd.
  EXPECT_LT(m.min, 2 - 4 * 0.5);
  EXPECT_LT(2 + 4 * 0.5, m.max);
  EXPECT_LT(2 - 7 * 0.5, m.min);
  EXPECT_LT(m.max, 2 + 7 * 0.5);
  EXPECT_LT(
      KolmogorovSmirnov(x, [](double v) { return NormalCdf((v - 2) / 0.5); }),
      1.95);
}

TEST(Initializer_TruncatedNormalStatistics) {
  const auto x =
      Sample(Make(InitializerKind::kTruncatedNormal, -1, 2), 21, 20000);
  const Moments m = MomentsOf(x);
  EXPECT_NEAR(m.mean, -1, 0.015);
  // Variance of a standard normal cut at 2 standard deviations.
  EXPECT_NEAR(m.variance, 4 * 0.77374, 0.03);
  EXPECT_LE(-1 - 2 * 2 - 1e-6, m.min);
  EXPECT_LE(m.max, -1 + 2 * 2 + 1e-6);
  EXPECT_LT(m.min, -1 - 1.99 * 2);
  EXPECT_LT(-1 + 1.99 * 2, m.max);
  const double low = NormalCdf(-2);
  const double width = NormalCdf(2) - low;
  const double ks = KolmogorovSmirnov(x, [&](double v) {
    return std::clamp((NormalCdf((v + 1) / 2) - low) / width, 0.0, 1.0);
  });
  EXPECT_LT(ks, 1.95);
}

TEST(Initializer_ValuesFollowTheirDefinition) {
  // Rows must be the same in every version and on every machine.
  constexpr int kDim = 37;
  for (uint64_t seed : {0ull, 5ull, 0x123456789abcdef0ull}) {
    for (Key key : {Key{0}, Key{42}, Key{-3}, Key{1} << 50}) {
      const auto uniform =
          Row(Make(InitializerKind::kUniform, -2, 2, seed), kDim, key);
      const auto normal =
          Row(Make(InitializerKind::kNormal, 0, 1, seed), kDim, key);
      const auto truncated =
          Row(Make(InitializerKind::kTruncatedNormal, 0, 1, seed), kDim, key);
      for (int column = 0; column < kDim; ++column) {
        const auto k = static_cast<uint64_t>(key);
        double x = 0;
        for (uint32_t redraw = 0;; ++redraw) {
          const auto bits = Philox4x32(
              {static_cast<uint32_t>(k), static_cast<uint32_t>(k >> 32),
               static_cast<uint32_t>(column / 4), redraw},
              {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
          const int pair = column % 4 / 2 * 2;
          const double u = ((bits[pair] >> 1) + 0.5) * 0x1p-31;
          // A quarter turn by the upper two bits, the others around it.
          const uint32_t angle = bits[pair + 1];
          const double turns =
              (angle >> 30) / 4.0 + static_cast<int32_t>(angle << 2) * 0x1p-34;
          const double phi = 2 * 3.14159265358979323846 * turns;
          x = std::sqrt(-2 * std::log(u)) *
              (column % 2 == 0 ? std::cos(phi) : std::sin(phi));
          if (redraw == 0) {
            EXPECT_NEAR(normal[column], x, 2e-6);
            EXPECT_NEAR(uniform[column],
                        -2 + 4 * ((bits[column % 4] >> 8) * 0x1p-24), 1e-6);
          }
          if (std::fabs(x) <= 2) break;
        }
        EXPECT_NEAR(truncated[column], x, 2e-6);
      }
    }
  }
}

TEST(Initializer_ColumnsAndKeysAreIndependent) {
  for (InitializerKind kind :
       {InitializerKind::kUniform, InitializerKind::kNormal,
        InitializerKind::kTruncatedNormal}) {
    const auto x = Sample(Make(kind, 0, 1), 16, 20000);
    // Neighbours in a block of random numbers, in a row, and across keys.
    for (size_t lag : {1, 2, 3, 4, 8, 16, 17, 32}) {
      EXPECT_LT(std::fabs(Correlation(x, lag)), 4.5);
    }
  }
}

TEST(Initializer_SameSeedAndKeySameRow) {
  for (InitializerKind kind :
       {InitializerKind::kUniform, InitializerKind::kNormal,
        InitializerKind::kTruncatedNormal}) {
    for (Key key :
         {Key{0}, Key{-1}, Key{1} << 40, std::numeric_limits<Key>::min(),
          std::numeric_limits<Key>::max()}) {
      const auto row = Row(Make(kind, 0, 1, 5), 9, key);
      EXPECT_TRUE(row == Row(Make(kind, 0, 1, 5), 9, key));
      EXPECT_FALSE(row == Row(Make(kind, 0, 1, 6), 9, key));
      // Both halves of the seed count.
      EXPECT_FALSE(row == Row(Make(kind, 0, 1, 5 + (1ull << 32)), 9, key));
    }
  }
}

TEST(Initializer_DifferentKeysDiffer) {
  for (InitializerKind kind :
       {InitializerKind::kUniform, InitializerKind::kNormal,
        InitializerKind::kTruncatedNormal}) {
    std::set<std::vector<float>> rows;
    int64_t keys = 0;
    for (Key base : {Key{0}, Key{1} << 32, -(Key{1} << 32), Key{1} << 62}) {
      for (Key i = -50; i < 50; ++i, ++keys) {
        rows.insert(Row(Make(kind, 0, 1), 4, base + i));
      }
    }
    EXPECT_EQ(rows.size(), keys);
  }
}

TEST(Initializer_ValuesDoNotDependOnDim) {
  for (InitializerKind kind :
       {InitializerKind::kUniform, InitializerKind::kNormal,
        InitializerKind::kTruncatedNormal}) {
    for (Key key : {Key{0}, Key{12345}, Key{-7}}) {
      const auto longest = Row(Make(kind, 0, 1), 100, key);
      for (int dim = 1; dim <= 100; ++dim) {
        const auto row = Row(Make(kind, 0, 1), dim, key);
        EXPECT_TRUE(std::equal(row.begin(), row.end(), longest.begin()));
      }
    }
  }
}

TEST(Initializer_WritesNoMoreThanDim) {
  for (int dim = 1; dim <= 20; ++dim) {
    std::vector<float> row(dim + 8, 42.0f);
    Initializer(Make(InitializerKind::kTruncatedNormal, 0, 1), dim)
        .Fill(1, row.data());
    for (int i = dim; i < dim + 8; ++i) EXPECT_EQ(row[i], 42.0f);
  }
}

TEST(Initializer_ScaleMultiplies) {
  for (InitializerKind kind :
       {InitializerKind::kConstant, InitializerKind::kUniform,
        InitializerKind::kNormal, InitializerKind::kTruncatedNormal,
        InitializerKind::kPool}) {
    InitializerOptions options = Make(kind, 0.5, 1);
    options.pool = {1, 2, 3, 4, 5, 6};
    const auto row = Row(options, 3, 11);
    options.scale = 0.25f;
    const auto scaled = Row(options, 3, 11);
    options.scale = 0;
    const auto zero = Row(options, 3, 11);
    for (int i = 0; i < 3; ++i) {
      EXPECT_NEAR(scaled[i], row[i] * 0.25f, 1e-7);
      EXPECT_NE(row[i], 0.0f);
      EXPECT_EQ(zero[i], 0.0f);
    }
  }
}

TEST(Initializer_PoolChoosesRowsEvenly) {
  constexpr int kRows = 10;
  constexpr int kDim = 3;
  InitializerOptions options = Make(InitializerKind::kPool, 0, 0);
  for (int i = 0; i < kRows * kDim; ++i) {
    options.pool.push_back(static_cast<float>(i));
  }
  const Initializer initializer(options, kDim);
  std::vector<int> chosen(kRows);
  constexpr int kKeys = 10000;
  for (Key key = 0; key < kKeys; ++key) {
    float row[kDim];
    initializer.Fill(key, row);
    const int r = static_cast<int>(row[0]) / kDim;
    ASSERT_TRUE(r >= 0 && r < kRows);
    for (int c = 0; c < kDim; ++c) {
      EXPECT_EQ(row[c], static_cast<float>(r * kDim + c));
    }
    ++chosen[r];
    float again[kDim];
    initializer.Fill(key, again);
    EXPECT_EQ(row[0], again[0]);
  }
  double chi = 0;
  for (int n : chosen) {
    const double expected = 1.0 * kKeys / kRows;
    chi += (n - expected) * (n - expected) / expected;
  }
  EXPECT_LT(chi, 27.9);  // 9 degrees of freedom, one in a thousand
  options.seed += 1;
  const Initializer other(options, kDim);
  int same = 0;
  for (Key key = 0; key < 1000; ++key) {
    float a[kDim];
    float b[kDim];
    initializer.Fill(key, a);
    other.Fill(key, b);
    same += a[0] == b[0];
  }
  EXPECT_LT(same, 200);
}

TEST(Initializer_PoolOfOneRow) {
  InitializerOptions options = Make(InitializerKind::kPool, 0, 0);
  options.pool = {1, 2};
  for (Key key : {Key{0}, Key{-5}, std::numeric_limits<Key>::max()}) {
    const auto row = Row(options, 2, key);
    EXPECT_EQ(row[0], 1.0f);
    EXPECT_EQ(row[1], 2.0f);
  }
}

}  // namespace
}  // namespace mxrec
