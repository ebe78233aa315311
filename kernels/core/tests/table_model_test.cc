// Long random streams of operations against a map that does the same naively.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mxrec/table.h"
#include "tests/table_utils.h"
#include "tests/testing.h"

namespace mxrec {
namespace testing {
namespace {

struct ModelRow {
  std::vector<double> w;
  std::vector<double> m;
  std::vector<double> v;
  int64_t count = 0;
};

class Stream {
 public:
  Stream(int dim, bool record_counts, uint64_t seed)
      : rng_(seed), dim_(dim), record_counts_(record_counts) {
    TableOptions options = Options("model", dim);
    options.record_counts = record_counts;
    table_ = MakeTable(options);
    foreign_ = MakeTable(Options("foreign", dim));
    for (Key key : {Key{0}, Key{-1}, std::numeric_limits<Key>::min(),
                    std::numeric_limits<Key>::max()}) {
      universe_.push_back(key);
    }
    for (Key key = 1; key < 150; ++key) universe_.push_back(key);
    for (Key key = 1; key < 50; ++key) universe_.push_back(key << 32);
    for (int i = 0; i < 100; ++i) universe_.push_back(static_cast<Key>(rng_()));
    // The same keys live elsewhere too, so that its addresses are plausible.
    foreign_addresses_ = FindOrInsert(foreign_.get(), universe_);
  }

  void Run(int operations, int max_batch) {
    max_batch_ = max_batch;
    for (int i = 0; i < operations && Failures() == 0; ++i) {
      switch (Below(&rng_, 12)) {
        case 0:
        case 1:
        case 2:
          DoFindOrInsert();
          break;
        case 3:
          DoFind();
          break;
        case 4:
          DoLookAhead(false);
          break;
        case 5:
          DoLookAhead(true);
          break;
        case 6:
        case 7:
          DoGather();
          break;
        case 8:
          DoSgd();
          break;
        case 9:
          DoLazyAdam();
          break;
        case 10:
          DoIllegalUpdate();
          break;
        case 11:
          if (Below(&rng_, 4) == 0) CheckExport();
          break;
      }
      CheckSizes();
    }
    CheckExport();
  }

 private:
  const Parallel& AnyParallel() {
    return Below(&rng_, 2) == 0 ? Serial() : FourThreads();
  }

  std::vector<Key> Batch() {
    std::vector<Key> keys(Below(&rng_, max_batch_ + 1));
    // Some batches are narrow, so that keys repeat within them.
    const int64_t width = Below(&rng_, universe_.size()) + 1;
    for (Key& key : keys) key = universe_[Below(&rng_, width)];
    return keys;
  }

  // Mostly right, and wrong in every way there is.
  std::vector<Address> Hints(const std::vector<Key>& keys) {
    if (Below(&rng_, 4) == 0) return {};
    std::vector<Address> hints(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto known = address_.find(keys[i]);
      const Address right = known == address_.end() ? 0 : known->second;
      switch (Below(&rng_, 10)) {
        default:
          hints[i] = right;
          break;
        case 4:  // another row of this table
          hints[i] = address_.empty() ? 0 : AnyAddress();
          break;
        case 5:
          hints[i] = foreign_addresses_[Below(&rng_, universe_.size())];
          break;
        case 6:
          hints[i] = static_cast<Address>(rng_());
          break;
        case 7:
          hints[i] = -right;
          break;
        case 8:  // this row of another time, or another table
          hints[i] = right == 0
                         ? std::numeric_limits<Address>::max()
                         : right ^ (Address{1} << (32 + Below(&rng_, 31)));
          break;
        case 9:  // a row that was never handed out
          hints[i] = right == 0 ? std::numeric_limits<Address>::min()
                                : right | static_cast<Address>(rng_() >> 32);
          break;
      }
    }
    return hints;
  }

  Address AnyAddress() {
    auto i = address_.begin();
    std::advance(i, Below(&rng_, address_.size()));
    return i->second;
  }

  ModelRow NewRow(Key key) {
    ModelRow row;
    for (float x : InitialRow(*table_, key)) row.w.push_back(x);
    row.m.assign(dim_, 0);
    row.v.assign(dim_, 0);
    return row;
  }

  // The same key has the same address for ever.
  void CheckAddress(Key key, Address address) {
    EXPECT_LT(0, address);
    const auto known = address_.emplace(key, address);
    EXPECT_EQ(known.first->second, address);
    if (known.second) {
      EXPECT_TRUE(used_addresses_.insert(address).second);
    }
  }

  void DoFindOrInsert() {
    const std::vector<Key> keys = Batch();
    const std::vector<Address> hints = Hints(keys);
    std::vector<int32_t> counts;
    if (Below(&rng_, 2) == 0) {
      for (size_t i = 0; i < keys.size(); ++i) {
        counts.push_back(static_cast<int32_t>(Below(&rng_, 5)));
      }
    }
    std::vector<Address> addresses(keys.size(), -1);
    EXPECT_OK(
        table_->FindOrInsert(keys, hints, counts, addresses, AnyParallel()));
    for (size_t i = 0; i < keys.size(); ++i) {
      CheckAddress(keys[i], addresses[i]);
      auto found = rows_.find(keys[i]);
      if (found == rows_.end()) {
        found = rows_.emplace(keys[i], NewRow(keys[i])).first;
      }
      found->second.count += counts.empty() ? 1 : counts[i];
    }
  }

  void DoFind() {
    const std::vector<Key> keys = Batch();
    const std::vector<Address> hints = Hints(keys);
    std::vector<Address> addresses(keys.size(), -1);
    EXPECT_OK(table_->Find(keys, hints, addresses, AnyParallel()));
    for (size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(addresses[i],
                rows_.count(keys[i]) ? address_.at(keys[i]) : kNoRow);
    }
  }

  void DoLookAhead(bool reserve) {
    const std::vector<Key> keys = Batch();
    std::vector<Address> hints(keys.size(), -1);
    EXPECT_OK(table_->LookAhead(keys, reserve, hints, AnyParallel()));
    for (size_t i = 0; i < keys.size(); ++i) {
      if (reserve) {
        CheckAddress(keys[i], hints[i]);
      } else if (rows_.count(keys[i])) {
        EXPECT_EQ(hints[i], address_.at(keys[i]));
      } else {
        // Nothing, or the row that is reserved for the key.
        const auto known = address_.find(keys[i]);
        EXPECT_TRUE(hints[i] == kNoRow ||
                    (known != address_.end() && known->second == hints[i]));
      }
    }
  }

  // Addresses of visible rows and 0, with repetitions; the keys beside them.
  std::pair<std::vector<Address>, std::vector<Key>> AddressBatch() {
    std::pair<std::vector<Address>, std::vector<Key>> batch;
    for (Key key : Batch()) {
      if (rows_.count(key) == 0) {
        if (Below(&rng_, 4) != 0) continue;
        batch.first.push_back(kNoRow);
      } else {
        batch.first.push_back(address_.at(key));
      }
      batch.second.push_back(key);
    }
    return batch;
  }

  void DoGather() {
    const auto [addresses, keys] = AddressBatch();
    std::vector<float> default_row;
    if (Below(&rng_, 2) == 0) {
      for (int c = 0; c < dim_; ++c) {
        default_row.push_back(UniformFloat(&rng_, 5, 6));
      }
    }
    const std::vector<float> out = Gather(
        *table_, addresses, default_row.empty() ? nullptr : default_row.data(),
        AnyParallel());
    for (size_t i = 0; i < keys.size(); ++i) {
      if (addresses[i] == kNoRow) {
        for (int c = 0; c < dim_; ++c) {
          EXPECT_EQ(out[i * dim_ + c],
                    default_row.empty() ? 0.0f : default_row[c]);
        }
      } else {
        CheckRow(rows_.at(keys[i]).w, out.data() + i * dim_);
      }
    }
  }

  void CheckRow(const std::vector<double>& expected, const float* row) {
    for (int c = 0; c < dim_; ++c) {
      EXPECT_NEAR(row[c], expected[c], 2e-5 * (1 + std::fabs(expected[c])));
    }
  }

  // Sum of the gradients of each key.
  std::map<Key, std::vector<double>> Sums(const std::vector<Address>& addresses,
                                          const std::vector<Key>& keys,
                                          const std::vector<float>& gradients) {
    std::map<Key, std::vector<double>> sums;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (addresses[i] == kNoRow) continue;
      std::vector<double>& sum = sums[keys[i]];
      sum.resize(dim_);
      for (int c = 0; c < dim_; ++c) sum[c] += gradients[i * dim_ + c];
    }
    return sums;
  }

  void DoSgd() {
    const auto [addresses, keys] = AddressBatch();
    const auto gradients = RandomGradients(&rng_, keys.size(), dim_);
    SgdParams params;
    params.learning_rate = 0.05f;
    params.weight_decay = Below(&rng_, 2) == 0 ? 0.0f : 0.1f;
    EXPECT_OK(
        table_->ApplySgd(addresses, gradients.data(), params, AnyParallel()));
    ++updates_;
    for (const auto& [key, g] : Sums(addresses, keys, gradients)) {
      std::vector<double>& w = rows_.at(key).w;
      for (int c = 0; c < dim_; ++c) {
        w[c] -= params.learning_rate * (g[c] + params.weight_decay * w[c]);
      }
    }
  }

  void DoLazyAdam() {
    const auto [addresses, keys] = AddressBatch();
    const auto gradients = RandomGradients(&rng_, keys.size(), dim_);
    LazyAdamParams params;
    params.learning_rate = 0.01f;
    params.beta1 = 0.8f;
    params.beta2 = 0.95f;
    params.epsilon = 1e-3f;
    EXPECT_OK(table_->ApplyLazyAdam(addresses, gradients.data(), params,
                                    AnyParallel()));
    ++updates_;
    ++adam_updates_;
    has_slots_ = true;
    const double b1 = params.beta1;
    const double b2 = params.beta2;
    const double lr = params.learning_rate *
                      std::sqrt(1 - std::pow(b2, adam_updates_)) /
                      (1 - std::pow(b1, adam_updates_));
    for (const auto& [key, g] : Sums(addresses, keys, gradients)) {
      ModelRow& row = rows_.at(key);
      for (int c = 0; c < dim_; ++c) {
        row.m[c] = b1 * row.m[c] + (1 - b1) * g[c];
        row.v[c] = b2 * row.v[c] + (1 - b2) * g[c] * g[c];
        row.w[c] -= lr * row.m[c] / (std::sqrt(row.v[c]) + params.epsilon);
      }
    }
  }

  // One bad address spoils the whole update: the model stays as it is.
  void DoIllegalUpdate() {
    auto [addresses, keys] = AddressBatch();
    const Address bad[] = {-1, std::numeric_limits<Address>::min(),
                           std::numeric_limits<Address>::max(),
                           foreign_addresses_[0], 1};
    const Address value = bad[Below(&rng_, 5)];
    const int64_t position = Below(&rng_, addresses.size() + 1);
    addresses.insert(addresses.begin() + position, value);
    const auto gradients = RandomGradients(&rng_, addresses.size(), dim_);
    EXPECT_ERROR(table_->ApplySgd(addresses, gradients.data(), SgdParams{1, 0},
                                  AnyParallel()),
                 Code::kInvalidArgument, "model");
    std::vector<float> out(addresses.size() * dim_);
    EXPECT_ERROR(table_->Gather(addresses, nullptr, out.data(), AnyParallel()),
                 Code::kInvalidArgument, std::to_string(value));
  }

  void CheckExport() {
    const auto exported = Export(*table_, 1 + Below(&rng_, 400));
    EXPECT_EQ(exported.size(), rows_.size());
    for (const auto& [key, row] : exported) {
      const auto found = rows_.find(key);
      ASSERT_TRUE(found != rows_.end());
      EXPECT_EQ(row.count, record_counts_ ? found->second.count : 0);
      ASSERT_EQ(row.row.size(), dim_ * (has_slots_ ? 3 : 1));
      CheckRow(found->second.w, row.row.data());
      if (has_slots_) {
        CheckRow(found->second.m, row.row.data() + dim_);
        CheckRow(found->second.v, row.row.data() + 2 * dim_);
      }
    }
  }

  void CheckSizes() {
    EXPECT_EQ(table_->size(), rows_.size());
    EXPECT_LE(address_.size(), table_->capacity());
    EXPECT_EQ(table_->update_count(), updates_);
    EXPECT_EQ(table_->stride(), dim_ * (has_slots_ ? 3 : 1));
  }

  Rng rng_;
  const int dim_;
  const bool record_counts_;
  int max_batch_ = 0;
  std::shared_ptr<Table> table_;
  std::shared_ptr<Table> foreign_;
  std::vector<Key> universe_;
  std::vector<Address> foreign_addresses_;
  std::unordered_map<Key, ModelRow> rows_;  // visible
  std::map<Key, Address> address_;          // visible or reserved
  std::set<Address> used_addresses_;
  int64_t updates_ = 0;
  int64_t adam_updates_ = 0;
  bool has_slots_ = false;
};

TEST(TableModel_Dim1) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Stream(1, seed % 2 == 0, seed).Run(1500, 200);
  }
}
TEST(TableModel_Dim3) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Stream(3, seed % 2 == 0, seed).Run(1500, 200);
  }
}
TEST(TableModel_Dim7) { Stream(7, true, 1).Run(2000, 300); }
TEST(TableModel_Dim16) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Stream(16, seed % 2 == 0, seed).Run(1500, 300);
  }
}
TEST(TableModel_Dim64) { Stream(64, false, 2).Run(1000, 200); }
TEST(TableModel_Dim8192) { Stream(8192, true, 3).Run(80, 30); }

}  // namespace
}  // namespace testing
}  // namespace mxrec
