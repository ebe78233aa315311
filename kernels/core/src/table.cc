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
      rows_(new RowStore(
          options_.name, is_fixed() ? 0 : options_.dim, options_.record_counts,
          options_.admission.record_times, options_.fixed_capacity)),
      access_threshold_(options_.admission.access_threshold),
      is_frozen_(options_.admission.access_threshold == 0) {
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
    usage.other_bytes += shard->candidates.bytes() + shard->freed.bytes();
  }
  usage.row_bytes = rows_->rows_allocated() * rows_->stride() *
                    static_cast<int64_t>(sizeof(float));
  usage.other_bytes += rows_->bytes_beside_rows();
  return usage;
}

void TableImpl::Release() {
  UniqueLock layout(layout_lock_);
  released_.store(true, std::memory_order_release);
  rows_.reset();
  shards_.clear();
  size_.store(0);
}

Status Table::CompleteOptions(TableOptions* options) {
  AdmissionOptions& admission = options->admission;
  const auto refuse = [options](const std::string& what) {
    return Status::InvalidArgument("table '" + options->name + "': " + what);
  };
  if (admission.access_threshold < -1 || admission.eviction_threshold < -1) {
    return refuse(
        "access_threshold and eviction_threshold must be at least -1, got " +
        std::to_string(admission.access_threshold) + " and " +
        std::to_string(admission.eviction_threshold));
  }
  if (admission.max_keys < 0 ||
      (options->fixed_capacity > 0 &&
       admission.max_keys > options->fixed_capacity)) {
    return refuse("max_keys must be in [0, the capacity], got " +
                  std::to_string(admission.max_keys));
  }
  if (admission.eviction_threshold >= 0) admission.record_times = true;
  if (admission.admits()) options->record_counts = true;
  if (admission.max_keys > 0) {
    admission.record_times = true;
    if (admission.evict_policy == EvictPolicy::kLeastFrequent) {
      options->record_counts = true;
    }
  }
  return Status::Ok();
}

Status Table::Create(TableOptions options, std::shared_ptr<Table>* table) {
  const Status admission = CompleteOptions(&options);
  if (!admission.ok()) return admission;
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
