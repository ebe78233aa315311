#include "mxrec/table.h"

#include <atomic>
#include <cmath>
#include <random>
#include <utility>

#include "table_impl.h"

namespace mxrec {
namespace {

constexpr int kMaxDim = 8192;

}  // namespace

uint32_t NewNonce() {
  static std::atomic<uint32_t> next{std::random_device{}()};
  uint32_t nonce = 0;
  while (nonce == 0) nonce = next.fetch_add(1) & kMaxNonce;
  return nonce;
}

TableImpl::TableImpl(TableOptions options)
    : options_(std::move(options)),
      initializer_(options_.initializer, options_.dim),
      padding_keys_(options_.padding_keys.begin(), options_.padding_keys.end()),
      nonce_(NewNonce()),
      rows_(new RowStore(options_.name, is_fixed() ? 0 : options_.dim,
                         options_.record_counts, options_.fixed_capacity)) {
  shards_.reserve(kShards);
  for (int s = 0; s < kShards; ++s) {
    shards_.push_back(std::make_unique<Shard>(s));
  }
}

MemoryUsage TableImpl::memory() const {
  MemoryUsage usage;
  SharedLock layout(layout_lock_);
  if (rows_ == nullptr) return usage;
  for (const auto& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard->mutex);
    usage.index_bytes += shard->index.bytes();
  }
  usage.row_bytes = rows_->rows_allocated() * rows_->stride() *
                    static_cast<int64_t>(sizeof(float));
  usage.other_bytes = rows_->bytes_beside_rows();
  return usage;
}

void TableImpl::Release() {
  UniqueLock layout(layout_lock_);
  released_.store(true, std::memory_order_release);
  rows_.reset();
  shards_.clear();
  size_.store(0);
}

Status Table::Create(TableOptions options, std::shared_ptr<Table>* table) {
  if (options.dim < 1 || options.dim > kMaxDim) {
    return Status::InvalidArgument(
        "table '" + options.name + "': dim must be in [1, " +
        std::to_string(kMaxDim) + "], got " + std::to_string(options.dim));
  }
  if (options.fixed_capacity < 0) {
    return Status::InvalidArgument(
        "table '" + options.name +
        "': fixed_capacity must not be negative, got " +
        std::to_string(options.fixed_capacity));
  }
  const InitializerOptions& initializer = options.initializer;
  const bool finite = std::isfinite(initializer.a) &&
                      std::isfinite(initializer.b) &&
                      std::isfinite(initializer.scale);
  const bool spreads = initializer.kind == InitializerKind::kNormal ||
                       initializer.kind == InitializerKind::kTruncatedNormal;
  if (!finite || (spreads && initializer.b < 0) ||
      (initializer.kind == InitializerKind::kUniform &&
       initializer.a > initializer.b)) {
    return Status::InvalidArgument(
        "table '" + options.name +
        "': the initializer's parameters must be "
        "finite, a standard deviation not negative and a range not empty; got "
        "a = " +
        std::to_string(initializer.a) +
        ", b = " + std::to_string(initializer.b) +
        ", scale = " + std::to_string(initializer.scale));
  }
  if (initializer.kind == InitializerKind::kPool &&
      (initializer.pool.empty() ||
       initializer.pool.size() % options.dim != 0)) {
    return Status::InvalidArgument(
        "table '" + options.name +
        "': the initializer's pool must hold rows of " +
        std::to_string(options.dim) + " values, got " +
        std::to_string(initializer.pool.size()) + " values");
  }
  auto created = std::make_shared<TableImpl>(std::move(options));
  const Status status = created->Init();
  if (status.ok()) *table = std::move(created);
  return status;
}

}  // namespace mxrec
