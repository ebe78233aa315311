// What updates do to rows: against a plain reference in double.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "mxrec/table.h"
#include "row_math.h"
#include "tests/table_utils.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

const int kDims[] = {1, 3, 7, 8, 16, 31, 33, 64, 200};

struct Batch {
  std::vector<Address> addresses;
  std::vector<int> rows;  // index among the keys, -1 for kNoRow
  std::vector<float> gradients;
};

// A subset of the rows, some of them repeated, and some kNoRow.
Batch RandomBatch(Rng* rng, const std::vector<Address>& all, int dim) {
  Batch batch;
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t dice = Below(rng, 10);
    if (dice >= 6) continue;
    const int times = dice == 0 ? 3 : 1;
    for (int t = 0; t < times; ++t) batch.rows.push_back(static_cast<int>(i));
    if (dice == 1) batch.rows.push_back(-1);
  }
  std::shuffle(batch.rows.begin(), batch.rows.end(), *rng);
  for (int r : batch.rows) batch.addresses.push_back(r < 0 ? kNoRow : all[r]);
  batch.gradients = RandomGradients(rng, batch.rows.size(), dim);
  return batch;
}

std::map<int, std::vector<double>> Sums(const Batch& batch, int dim) {
  std::map<int, std::vector<double>> sums;
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    if (batch.rows[i] < 0) continue;
    auto& sum = sums[batch.rows[i]];
    sum.resize(dim);
    for (int c = 0; c < dim; ++c) sum[c] += batch.gradients[i * dim + c];
  }
  return sums;
}

TEST(TableUpdate_SgdFollowsTheReference) {
  for (int dim : kDims) {
    for (float weight_decay : {0.0f, 0.02f}) {
      const auto table = MakeTable(Options("t", dim));
      const auto keys = KeyRange(100, 50);
      const auto addresses = FindOrInsert(table.get(), keys);
      std::vector<std::vector<double>> w;
      for (Key key : keys) {
        const auto row = InitialRow(*table, key);
        w.emplace_back(row.begin(), row.end());
      }
      Rng rng(dim);
      for (int step = 0; step < 20; ++step) {
        const Batch batch = RandomBatch(&rng, addresses, dim);
        const SgdParams params{0.1f / (1 + step), weight_decay};
        ASSERT_OK(table->ApplySgd(batch.addresses, batch.gradients.data(),
                                  params, FourThreads()));
        for (const auto& [r, g] : Sums(batch, dim)) {
          for (int c = 0; c < dim; ++c) {
            w[r][c] -= params.learning_rate *
                       (g[c] + double{params.weight_decay} * w[r][c]);
          }
        }
      }
      EXPECT_EQ(table->update_count(), 20);
      EXPECT_EQ(table->stride(), dim);
      const auto out = Gather(*table, addresses);
      for (size_t r = 0; r < keys.size(); ++r) {
        for (int c = 0; c < dim; ++c)
          EXPECT_NEAR(out[r * dim + c], w[r][c], 3e-6);
      }
    }
  }
}

TEST(TableUpdate_LazyAdamFollowsTheReference) {
  for (int dim : kDims) {
    const auto table = MakeTable(Options("t", dim));
    const auto keys = KeyRange(-20, 50);
    const auto addresses = FindOrInsert(table.get(), keys);
    struct Row {
      std::vector<double> w, m, v;
    };
    std::vector<Row> rows;
    for (Key key : keys) {
      const auto row = InitialRow(*table, key);
      rows.push_back({{row.begin(), row.end()},
                      std::vector<double>(dim),
                      std::vector<double>(dim)});
    }
    Rng rng(dim);
    LazyAdamParams params;
    params.learning_rate = 0.01f;
    const double b1 = params.beta1;
    const double b2 = params.beta2;
    for (int step = 1; step <= 20; ++step) {
      // Step 7 updates no row, and yet counts.
      const Batch batch =
          step == 7 ? Batch{} : RandomBatch(&rng, addresses, dim);
      ASSERT_OK(table->ApplyLazyAdam(batch.addresses, batch.gradients.data(),
                                     params, FourThreads()));
      EXPECT_EQ(table->update_count(), step);
      const double lr = params.learning_rate *
                        std::sqrt(1 - std::pow(b2, step)) /
                        (1 - std::pow(b1, step));
      for (const auto& [r, g] : Sums(batch, dim)) {
        Row& row = rows[r];
        for (int c = 0; c < dim; ++c) {
          row.m[c] = b1 * row.m[c] + (1 - b1) * g[c];
          row.v[c] = b2 * row.v[c] + (1 - b2) * g[c] * g[c];
          row.w[c] -= lr * row.m[c] / (std::sqrt(row.v[c]) + params.epsilon);
        }
      }
    }
    EXPECT_EQ(table->stride(), 3 * dim);
    const auto exported = Export(*table);
    EXPECT_EQ(exported.size(), keys.size());
    for (size_t r = 0; r < keys.size(); ++r) {
      const std::vector<float>& row = exported.at(keys[r]).row;
      ASSERT_EQ(row.size(), 3 * dim);
      for (int c = 0; c < dim; ++c) {
        EXPECT_NEAR(row[c], rows[r].w[c], 1e-5);
        EXPECT_NEAR(row[dim + c], rows[r].m[c], 1e-6);
        EXPECT_NEAR(row[2 * dim + c], rows[r].v[c], 1e-6);
      }
    }
  }
}

// A row with its slots, in double.
struct ReferenceRow {
  std::vector<double> w, a, b;
};

std::vector<ReferenceRow> ReferenceRows(const Table& table,
                                        const std::vector<Key>& keys, double a,
                                        double b) {
  std::vector<ReferenceRow> rows;
  for (Key key : keys) {
    const auto row = InitialRow(table, key);
    rows.push_back({{row.begin(), row.end()},
                    std::vector<double>(row.size(), a),
                    std::vector<double>(row.size(), b)});
  }
  return rows;
}

TEST(TableUpdate_AdagradFollowsTheReference) {
  for (int dim : kDims) {
    const auto table = MakeTable(Options("t", dim));
    const auto keys = KeyRange(-20, 50);
    const auto addresses = FindOrInsert(table.get(), keys);
    AdagradParams params;
    params.learning_rate = 0.05f;
    params.initial_accumulator_value = 0.3f;
    auto rows =
        ReferenceRows(*table, keys, params.initial_accumulator_value, 0);
    Rng rng(dim);
    for (int step = 1; step <= 20; ++step) {
      const Batch batch = RandomBatch(&rng, addresses, dim);
      ASSERT_OK(table->ApplyAdagrad(batch.addresses, batch.gradients.data(),
                                    params, FourThreads()));
      for (const auto& [r, g] : Sums(batch, dim)) {
        for (int c = 0; c < dim; ++c) {
          rows[r].a[c] += g[c] * g[c];
          rows[r].w[c] -=
              params.learning_rate * g[c] / std::sqrt(rows[r].a[c] + 1e-7);
        }
      }
    }
    EXPECT_EQ(table->update_count(), 20);
    EXPECT_EQ(table->stride(), 2 * dim);
    const auto exported = Export(*table);
    for (size_t r = 0; r < keys.size(); ++r) {
      const std::vector<float>& row = exported.at(keys[r]).row;
      ASSERT_EQ(row.size(), 2 * dim);
      for (int c = 0; c < dim; ++c) {
        EXPECT_NEAR(row[c], rows[r].w[c], 1e-5);
        EXPECT_NEAR(row[dim + c], rows[r].a[c], 1e-4);
      }
    }
  }
}

TEST(TableUpdate_AdagradAddsEachEpsilonInItsPlace) {
  const auto table = MakeTable(Options("t", 1));
  const auto addresses = FindOrInsert(table.get(), {7});
  const float before = InitialRow(*table, 7)[0];
  AdagradParams params;
  params.learning_rate = 1.0f;
  params.initial_accumulator_value = 2.0f;
  params.epsilon = 5.0f;
  params.root_epsilon = 2.0f;
  const float gradient = 3.0f;  // sqrt(2 + 9 + 5) + 2 = 6
  ASSERT_OK(table->ApplyAdagrad(addresses, &gradient, params, Serial()));
  EXPECT_NEAR(Export(*table).at(7).row[0], before - 0.5, 1e-6);
}

TEST(TableUpdate_AdamMovesAllRowsAsTheReference) {
  for (int dim : kDims) {
    const auto table = MakeTable(Options("t", dim));
    const auto keys = KeyRange(-20, 400);
    const auto addresses = FindOrInsert(table.get(), keys);
    AdamParams params;
    params.step_size = 0.05f;
    auto rows = ReferenceRows(*table, keys, 0, 0);
    Rng rng(dim);
    for (int step = 1; step <= 10; ++step) {
      const Batch batch = RandomBatch(&rng, addresses, dim);
      ASSERT_OK(table->ApplyAdam(batch.addresses, batch.gradients.data(),
                                 params, step % 2 ? Serial() : FourThreads()));
      const auto sums = Sums(batch, dim);
      for (auto& row : rows) {
        for (int c = 0; c < dim; ++c) {
          row.a[c] *= params.beta1;
          row.b[c] *= params.beta2;
        }
      }
      for (const auto& [r, g] : sums) {
        for (int c = 0; c < dim; ++c) {
          rows[r].a[c] += (1 - params.beta1) * g[c];
          rows[r].b[c] += (1 - params.beta2) * g[c] * g[c];
        }
      }
      for (auto& row : rows) {
        for (int c = 0; c < dim; ++c) {
          row.w[c] -= params.step_size * row.a[c] /
                      (std::sqrt(row.b[c]) + params.epsilon);
        }
      }
    }
    const auto exported = Export(*table);
    for (size_t r = 0; r < keys.size(); ++r) {
      const std::vector<float>& row = exported.at(keys[r]).row;
      ASSERT_EQ(row.size(), 3 * dim);
      for (int c = 0; c < dim; ++c) {
        EXPECT_NEAR(row[c], rows[r].w[c], 2e-4);
        EXPECT_NEAR(row[dim + c], rows[r].a[c], 1e-5);
        EXPECT_NEAR(row[2 * dim + c], rows[r].b[c], 1e-5);
      }
    }
  }
}

TEST(TableUpdate_ImportGivesRowsAndBeginsSlotsAnew) {
  const auto table = MakeTable(Options("t", 3));
  const auto addresses = FindOrInsert(table.get(), {1, 2});
  AdagradParams params;
  params.initial_accumulator_value = 0.25f;
  const std::vector<float> gradients(6, 1.0f);
  ASSERT_OK(table->ApplyAdagrad(addresses, gradients.data(), params, Serial()));
  const auto before = Export(*table);
  const std::vector<Key> keys = {2, 5, 2};
  const std::vector<float> rows = {9, 9, 9, 4, 5, 6, 7, 8, 9};
  ASSERT_OK(table->Import(keys, rows.data(), FourThreads()));
  EXPECT_EQ(table->size(), 3);
  const auto after = Export(*table);
  EXPECT_TRUE(SameBits(after.at(1).row, before.at(1).row));
  const std::vector<float> of_2 = {7, 8, 9, 0.25f, 0.25f, 0.25f};
  const std::vector<float> of_5 = {4, 5, 6, 0.25f, 0.25f, 0.25f};
  EXPECT_TRUE(SameBits(after.at(2).row, of_2));
  EXPECT_TRUE(SameBits(after.at(5).row, of_5));
  TableOptions fixed = Options("f", 3);
  fixed.fixed_capacity = 4;
  EXPECT_ERROR(MakeTable(fixed)->Import(keys, rows.data(), Serial()),
               Code::kFailedPrecondition, "fixed capacity");
}

TEST(TableUpdate_ClearLeavesANewTable) {
  const auto table = MakeTable(Options("t", 3));
  const auto fresh = FindOrInsert(table.get(), {1, 2});
  const auto initial = Export(*table);
  AdagradParams params;
  params.initial_accumulator_value = 0.25f;
  const std::vector<float> gradients(6, 1.0f);
  ASSERT_OK(table->ApplyAdagrad(fresh, gradients.data(), params, Serial()));
  ASSERT_OK(table->Clear());
  EXPECT_EQ(table->size(), 0);
  EXPECT_ERROR(table->ApplyAdagrad(fresh, gradients.data(), params, Serial()),
               Code::kInvalidArgument, "address");
  (void)FindOrInsert(table.get(), {2});
  const auto after = Export(*table);
  EXPECT_EQ(table->size(), 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(after.at(2).row[i], initial.at(2).row[i]);
    EXPECT_EQ(after.at(2).row[3 + i], 0.25f);
  }
  TableOptions fixed = Options("f", 3);
  fixed.fixed_capacity = 4;
  EXPECT_ERROR(MakeTable(fixed)->Clear(), Code::kFailedPrecondition,
               "fixed capacity");
}

TEST(TableUpdate_FtrlFollowsTheReference) {
  for (int dim : {1, 7, 16, 33}) {
    for (const auto& [power, l1, l2, shrinkage] :
         std::vector<std::array<float, 4>>{{-0.5f, 0, 0, 0},
                                           {-0.5f, 0.05f, 0.1f, 0.02f},
                                           {-0.7f, 0.05f, 0.1f, 0.02f},
                                           {0, 0.01f, 0, 0}}) {
      const auto table = MakeTable(Options("t", dim));
      const auto keys = KeyRange(-20, 50);
      const auto addresses = FindOrInsert(table.get(), keys);
      const FtrlParams params{0.1f, power, 0.2f, l1, l2, shrinkage};
      auto rows = ReferenceRows(*table, keys, 0.2f, 0);
      const double lr = params.learning_rate;
      Rng rng(dim);
      for (int step = 1; step <= 15; ++step) {
        const Batch batch = RandomBatch(&rng, addresses, dim);
        ASSERT_OK(table->ApplyFtrl(batch.addresses, batch.gradients.data(),
                                   params, FourThreads()));
        for (const auto& [r, g] : Sums(batch, dim)) {
          for (int c = 0; c < dim; ++c) {
            double& w = rows[r].w[c];
            double& accum = rows[r].a[c];
            double& linear = rows[r].b[c];
            const double new_accum = accum + g[c] * g[c];
            const double sigma = (std::pow(new_accum, -double{power}) -
                                  std::pow(accum, -double{power})) /
                                 lr;
            linear += g[c] + 2 * double{shrinkage} * w - sigma * w;
            const double clipped =
                std::max(std::min(linear, double{l1}), -double{l1});
            w = (clipped - linear) /
                (std::pow(new_accum, -double{power}) / lr + 2 * double{l2});
            accum = new_accum;
          }
        }
      }
      EXPECT_EQ(table->stride(), 3 * dim);
      const auto exported = Export(*table);
      int zeros = 0;
      for (size_t r = 0; r < keys.size(); ++r) {
        const std::vector<float>& row = exported.at(keys[r]).row;
        ASSERT_EQ(row.size(), 3 * dim);
        for (int c = 0; c < dim; ++c) {
          EXPECT_NEAR(row[c], rows[r].w[c], 2e-5);
          EXPECT_NEAR(row[dim + c], rows[r].a[c], 1e-4);
          EXPECT_NEAR(row[2 * dim + c], rows[r].b[c], 2e-4);
          zeros += row[c] == 0;
        }
      }
      // The l1 regularization sets weights to exactly 0.
      if (l1 > 0.02f && dim > 1) EXPECT_LT(0, zeros);
    }
  }
}

TEST(TableUpdate_FtrlOfAnUntouchedRowWithoutAccumulatorKeepsIt) {
  const auto table = MakeTable(Options("t", 3));
  const auto a = FindOrInsert(table.get(), {1});
  const std::vector<float> g = {0, 0, 1};
  const FtrlParams params{0.1f, -0.5f, 0, 0, 0, 0};
  ASSERT_OK(table->ApplyFtrl(a, g.data(), params, Serial()));
  const auto initial = InitialRow(*table, 1);
  const auto row = Gather(*table, a);
  EXPECT_EQ(row[0], initial[0]);
  EXPECT_EQ(row[1], initial[1]);
  EXPECT_TRUE(row[2] != initial[2] && std::isfinite(row[2]));
}

TEST(TableUpdate_FtrlNeedsAPositiveRate) {
  const auto table = MakeTable(Options("rate_table", 1));
  for (float rate : {0.0f, -1.0f, NAN}) {
    FtrlParams params;
    params.learning_rate = rate;
    EXPECT_ERROR(table->ApplyFtrl({}, nullptr, params, Serial()),
                 Code::kInvalidArgument, "rate_table");
  }
  EXPECT_EQ(table->update_count(), 0);
  EXPECT_EQ(table->stride(), 1);
}

TEST(TableUpdate_OneKindOfSlotsPerTable) {
  const auto table = MakeTable(Options("slot_table", 2));
  const auto a = FindOrInsert(table.get(), {1});
  const std::vector<float> g = {1, 1};
  AdagradParams params;
  ASSERT_OK(table->ApplyAdagrad(a, g.data(), params, Serial()));
  const auto before = Export(*table);
  EXPECT_ERROR(table->ApplyLazyAdam(a, g.data(), {}, Serial()),
               Code::kFailedPrecondition, "Adagrad");
  FtrlParams ftrl;
  ftrl.learning_rate = 0.1f;
  EXPECT_ERROR(table->ApplyFtrl(a, g.data(), ftrl, Serial()),
               Code::kFailedPrecondition, "slot_table");
  params.initial_accumulator_value = 0.5f;
  EXPECT_ERROR(table->ApplyAdagrad(a, g.data(), params, Serial()),
               Code::kFailedPrecondition, "0.5");
  EXPECT_TRUE(SameBits(before, Export(*table)));
  // Rows that come later begin with the same slots.
  FindOrInsert(table.get(), {2});
  const auto after = Export(*table);
  EXPECT_EQ(after.at(2).row[2], 0.9f);
  EXPECT_EQ(after.at(2).row[3], 0.9f);
  EXPECT_NEAR(after.at(1).row[2], 1.9, 1e-6);
}

TEST(TableUpdate_RowsOfPaddingKeysStay) {
  TableOptions options = Options("t", 5);
  options.padding_keys = {3, -7, 1000};
  const auto frozen = [&](Key key) {
    return std::count(options.padding_keys.begin(), options.padding_keys.end(),
                      key) > 0;
  };
  for (const Parallel* parallel : {&Serial(), &FourThreads()}) {
    for (int optimizer = 0; optimizer < 4; ++optimizer) {
      const auto table = MakeTable(options);
      TableOptions plain_options = options;
      plain_options.padding_keys.clear();
      const auto plain = MakeTable(plain_options);
      Rng rng(optimizer);
      // Some keys are reserved first, some come after the slots.
      LookAhead(table.get(), {3, 4}, true);
      for (int step = 0; step < 6; ++step) {
        std::vector<Key> keys = {3, 8, 3};
        for (int i = 0; i < 2000; ++i) keys.push_back(Below(&rng, 3000) - 10);
        if (step > 2) keys.push_back(-7);
        const auto gradients = RandomGradients(&rng, keys.size(), 5);
        for (Table* t : {table.get(), plain.get()}) {
          const auto a = FindOrInsert(t, keys, *parallel);
          const float* g = gradients.data();
          switch (optimizer) {
            case 0:
              ASSERT_OK(t->ApplySgd(a, g, {0.1f, 0.5f}, *parallel));
              break;
            case 1:
              ASSERT_OK(t->ApplyLazyAdam(a, g, {}, *parallel));
              break;
            case 2:
              ASSERT_OK(t->ApplyAdagrad(a, g, {}, *parallel));
              break;
            default:
              ASSERT_OK(t->ApplyFtrl(a, g, {0.1f}, *parallel));
          }
        }
      }
      EXPECT_EQ(table->update_count(), 6);
      const auto exported = Export(*table);
      const auto others = Export(*plain);
      EXPECT_EQ(exported.size(), others.size());
      const std::vector<float> slots[] = {
          {},
          {0, 0},
          {AdagradParams().initial_accumulator_value},
          {FtrlParams().initial_accumulator_value, 0}};
      for (const auto& [key, row] : exported) {
        EXPECT_EQ(row.count, others.at(key).count);
        if (!frozen(key)) {
          EXPECT_TRUE(SameBits(row.row, others.at(key).row));
          continue;
        }
        std::vector<float> expected = InitialRow(*table, key);
        for (float value : slots[optimizer]) {
          expected.insert(expected.end(), 5, value);
        }
        EXPECT_TRUE(SameBits(row.row, expected));
        EXPECT_FALSE(SameBits(row.row, others.at(key).row));
      }
    }
  }
}

TEST(TableUpdate_RepeatedAddressesAreSummedFirst) {
  // With Adam, two updates and one update with the sum differ.
  const auto once = MakeTable(Options("t", 4));
  const auto twice = MakeTable(Options("t", 4));
  const Address a = FindOrInsert(once.get(), {1})[0];
  const Address b = FindOrInsert(twice.get(), {1})[0];
  const std::vector<float> sum = {4, 0.25f, -3, 10};
  const std::vector<float> parts = {1,  0.125f, -5, 4,      99, 99,
                                    99, 99,     3,  0.125f, 2,  6};
  ASSERT_OK(
      once->ApplyLazyAdam(std::vector<Address>{a}, sum.data(), {}, Serial()));
  ASSERT_OK(twice->ApplyLazyAdam(std::vector<Address>{b, kNoRow, b},
                                 parts.data(), {}, Serial()));
  EXPECT_TRUE(SameBits(Export(*once), Export(*twice)));
}

TEST(TableUpdate_SumsInOrderOfPosition) {
  // In floats, (1e8 + 1) - 1e8 is 0, but (1e8 - 1e8) + 1 is 1.
  for (const Parallel* parallel : {&Serial(), &FourThreads()}) {
    for (int gap : {0, 5000}) {
      TableOptions options = Options("t", 1);
      options.initializer = {};
      const auto table = MakeTable(options);
      const Address a = FindOrInsert(table.get(), {1})[0];
      const Address b = FindOrInsert(table.get(), {2})[0];
      std::vector<Address> addresses(3 * (gap + 2), kNoRow);
      std::vector<float> gradients(addresses.size(), 5.0f);
      const float to_a[] = {1e8f, 1.0f, -1e8f};
      const float to_b[] = {1e8f, -1e8f, 1.0f};
      for (int i = 0; i < 3; ++i) {
        addresses[i * (gap + 2)] = a;
        gradients[i * (gap + 2)] = to_a[i];
        addresses[i * (gap + 2) + 1] = b;
        gradients[i * (gap + 2) + 1] = to_b[i];
      }
      ASSERT_OK(table->ApplySgd(addresses, gradients.data(), SgdParams{1, 0},
                                *parallel));
      const auto out = Gather(*table, {a, b});
      EXPECT_EQ(out[0], 0.0f);
      EXPECT_EQ(out[1], -1.0f);
    }
  }
}

TEST(TableUpdate_ManyRepetitionsOfFewRows) {
  TableOptions options = Options("t", 3);
  options.initializer = {};
  const auto table = MakeTable(options);
  const auto rows = FindOrInsert(table.get(), KeyRange(0, 3));
  std::vector<Address> addresses;
  for (int i = 0; i < 30000; ++i) addresses.push_back(rows[i % 3]);
  const std::vector<float> gradients(addresses.size() * 3, 1.0f);
  ASSERT_OK(table->ApplySgd(addresses, gradients.data(), SgdParams{1, 0},
                            FourThreads()));
  for (float x : Gather(*table, rows)) EXPECT_EQ(x, -10000.0f);
}

TEST(TableUpdate_AnEmptyUpdateCounts) {
  const auto table = MakeTable(Options("t", 4));
  EXPECT_EQ(table->update_count(), 0);
  EXPECT_OK(table->ApplySgd({}, nullptr, {}, FourThreads()));
  EXPECT_EQ(table->update_count(), 1);
  EXPECT_OK(table->ApplyLazyAdam({}, nullptr, {}, FourThreads()));
  EXPECT_EQ(table->update_count(), 2);
}

// Inserts and updates of a few batches.
std::shared_ptr<Table> Trained(int dim, const Parallel& parallel) {
  const auto table = MakeTable(Options("t", dim));
  Rng rng(dim);
  for (int step = 0; step < 12; ++step) {
    std::vector<Key> keys(3000);
    for (Key& key : keys) key = Below(&rng, 4000);
    const auto addresses = FindOrInsert(table.get(), keys, parallel);
    const auto gradients = RandomGradients(&rng, keys.size(), dim);
    EXPECT_OK(step % 3 == 0 ? table->ApplySgd(addresses, gradients.data(),
                                              SgdParams{0.1f, 0.01f}, parallel)
                            : table->ApplyLazyAdam(addresses, gradients.data(),
                                                   {}, parallel));
  }
  return table;
}

TEST(TableUpdate_ThreadsDoNotChangeABit) {
  for (int dim : {1, 7, 16, 64}) {
    const auto serial = Trained(dim, Serial());
    const auto expected = Export(*serial);
    EXPECT_LT(2000, expected.size());
    for (int i = 0; i < 3; ++i) {
      const auto parallel = Trained(dim, FourThreads());
      EXPECT_TRUE(SameBits(expected, Export(*parallel)));
      std::vector<Key> keys = KeyRange(0, 4000);
      EXPECT_TRUE(
          SameBits(Gather(*serial, Find(*serial, keys)),
                   Gather(*parallel, Find(*parallel, keys, FourThreads()),
                          nullptr, FourThreads())));
    }
  }
}

TEST(TableUpdate_SlotsAddedLaterKeepAddressesAndEmbeddings) {
  for (int dim : {1, 16, 100}) {
    const auto table = MakeTable(Options("t", dim));
    // Several slabs of rows.
    const auto keys = KeyRange(0, 150000 / dim + 500);
    const auto addresses = FindOrInsert(table.get(), keys);
    const Address reserved = LookAhead(table.get(), {-5}, true)[0];
    const auto before = Gather(*table, addresses);
    EXPECT_EQ(table->stride(), dim);
    ASSERT_OK(table->ApplyLazyAdam({}, nullptr, {}, Serial()));
    EXPECT_EQ(table->stride(), 3 * dim);
    EXPECT_TRUE(addresses == Find(*table, keys));
    EXPECT_TRUE(SameBits(before, Gather(*table, addresses)));
    // Rows that were only reserved, and rows that come later, have slots too.
    EXPECT_EQ(FindOrInsert(table.get(), {-5})[0], reserved);
    FindOrInsert(table.get(), {-6});
    const auto exported = Export(*table);
    EXPECT_EQ(exported.size(), keys.size() + 2);
    for (const auto& [key, row] : exported) {
      ASSERT_EQ(row.row.size(), 3 * dim);
      const auto initial = InitialRow(*table, key);
      EXPECT_TRUE(std::equal(initial.begin(), initial.end(), row.row.begin()));
      for (int c = dim; c < 3 * dim; ++c) EXPECT_EQ(row.row[c], 0.0f);
    }
  }
}

TEST(TableUpdate_SgdGoesWithAnySlots) {
  const auto table = MakeTable(Options("t", 2));
  const auto a = FindOrInsert(table.get(), {1});
  const std::vector<float> g = {1, 1};
  EXPECT_OK(table->ApplySgd(a, g.data(), SgdParams{0.1f, 0}, Serial()));
  EXPECT_OK(table->ApplyLazyAdam(a, g.data(), {}, Serial()));
  EXPECT_OK(table->ApplySgd(a, g.data(), SgdParams{0.1f, 0}, Serial()));
  EXPECT_OK(table->ApplyLazyAdam(a, g.data(), {}, Serial()));
  EXPECT_EQ(table->update_count(), 4);
}

// The bias correction counts LazyAdam's own steps, not SGD's before or between.
TEST(TableUpdate_SgdDoesNotAgeLazyAdam) {
  for (const bool repeated : {false, true}) {
    const auto mixed = MakeTable(Options("mixed", 8));
    const auto adam = MakeTable(Options("adam", 8));
    std::vector<Key> keys = KeyRange(0, 30);
    if (repeated) keys.insert(keys.end(), keys.begin(), keys.begin() + 5);
    const auto in_mixed = FindOrInsert(mixed.get(), keys);
    const auto in_adam = FindOrInsert(adam.get(), keys);
    Rng rng(8);
    const auto sgd_step = [&] {  // of rate 0, so that only a count could differ
      const auto gradients = RandomGradients(&rng, keys.size(), 8);
      ASSERT_OK(mixed->ApplySgd(in_mixed, gradients.data(), SgdParams{0, 0},
                                FourThreads()));
    };
    LazyAdamParams params;
    params.learning_rate = 0.1f;
    for (int i = 0; i < 5; ++i) sgd_step();
    for (int step = 1; step <= 4; ++step) {
      const auto gradients = RandomGradients(&rng, keys.size(), 8);
      ASSERT_OK(mixed->ApplyLazyAdam(in_mixed, gradients.data(), params,
                                     FourThreads()));
      ASSERT_OK(adam->ApplyLazyAdam(in_adam, gradients.data(), params,
                                    FourThreads()));
      EXPECT_TRUE(SameBits(Export(*adam), Export(*mixed)));
      sgd_step();
      EXPECT_EQ(mixed->update_count(), 5 + 2 * step);
      EXPECT_EQ(adam->update_count(), step);
    }
  }
}

TEST(TableUpdate_NotANumberStaysInItsRow) {
  const auto table = MakeTable(Options("t", 16));
  const auto addresses = FindOrInsert(table.get(), KeyRange(0, 40));
  std::vector<float> gradients(40 * 16, 0.5f);
  for (int c = 0; c < 16; ++c) gradients[13 * 16 + c] = NAN;
  ASSERT_OK(table->ApplyLazyAdam(addresses, gradients.data(), {}, Serial()));
  const auto out = Gather(*table, addresses);
  for (int i = 0; i < 40 * 16; ++i) {
    EXPECT_EQ(std::isnan(out[i]), i / 16 == 13);
  }
}

// Every instruction set this machine has computes the same, up to the rounding
// of fused operations.
TEST(RowMath_InstructionSetsAgree) {
  std::vector<const RowMath*> all = {&internal::kRowMathBaseline};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    all.push_back(&internal::kRowMathAvx2);
  }
  if (&BestRowMath() != all.back()) all.push_back(&BestRowMath());
  for (int dim : kDims) {
    Rng rng(dim);
    constexpr int kRows = 50;
    const auto gradients = RandomGradients(&rng, kRows, dim);
    std::vector<float> initial = RandomGradients(&rng, kRows * 3, dim);
    for (float& x : initial) x = std::fabs(x);
    std::vector<float> default_row(dim, 6.0f);
    std::vector<float> expected;
    for (const RowMath* math : all) {
      std::vector<float> rows = initial;
      std::vector<float*> pointers;
      for (int i = 0; i < kRows; ++i) {
        pointers.push_back(i % 5 == 2 ? nullptr : rows.data() + i * 3 * dim);
      }
      math->sgd(pointers.data(), gradients.data(), kRows, dim, 0.1f, 0.2f);
      math->lazy_adam(pointers.data(), gradients.data(), kRows, dim, 0.01f,
                      0.9f, 0.99f, 1e-6f);
      math->adagrad(pointers.data(), gradients.data(), kRows, dim, 0.1f, 1e-7f,
                    1e-3f);
      math->ftrl(pointers.data(), gradients.data(), kRows, dim, 0.1f, -0.5f,
                 0.05f, 0.1f, 0.02f);
      math->ftrl(pointers.data(), gradients.data(), kRows, dim, 0.1f, -0.3f,
                 0.05f, 0.1f, 0.02f);
      math->adam_add(pointers.data(), gradients.data(), kRows, dim, 0.9f,
                     0.99f);
      std::vector<float> out(kRows * dim, -5.0f);
      math->gather(pointers.data(), kRows, dim, default_row.data(), out.data());
      for (int i = 0; i < kRows; ++i) {
        for (int c = 0; c < dim; ++c) {
          EXPECT_EQ(out[i * dim + c], pointers[i] ? pointers[i][c] : 6.0f);
        }
      }
      math->gather(pointers.data(), kRows, dim, nullptr, out.data());
      for (int c = 0; c < dim; ++c) EXPECT_EQ(out[2 * dim + c], 0.0f);
      if (expected.empty()) expected = rows;
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_NEAR(rows[i], expected[i], 1e-5 * (1 + std::fabs(expected[i])));
      }
    }
  }
}

}  // namespace
}  // namespace testing
}  // namespace mxrec
