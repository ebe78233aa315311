// MxRecTable: the handle of a table, which it creates on first use.
#include "mxrec/shared_counts.h"
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;

// Counts that several tables of a session share.
class SharedCountsResource final : public tensorflow::ResourceBase {
 public:
  const std::shared_ptr<mxrec::SharedCounts>& counts() const { return counts_; }
  std::string DebugString() const override { return "mx_rec shared counts"; }
  int64_t MemoryUsed() const override { return counts_->bytes(); }

 private:
  const std::shared_ptr<mxrec::SharedCounts> counts_ =
      std::make_shared<mxrec::SharedCounts>();
};

// What an occurrence counts by the training lookups of the graph.
constexpr char kCoefficients[] = "_mx_rec_coefficients";

REGISTER_OP("MxRecTable")
    .Output("handle: resource")
    .Attr("table_name: string")
    .Attr("dim: int >= 1")
    .Attr(
        "initializer: {'constant', 'uniform', 'normal', 'truncated_normal', "
        "'pool'} = 'constant'")
    .Attr("initializer_a: float = 0.0")
    .Attr("initializer_b: float = 0.0")
    .Attr("initializer_scale: float = 1.0")
    .Attr("initializer_pool: tensor = { dtype: DT_FLOAT tensor_shape {} }")
    .Attr("seed: int = 0")
    .Attr("record_counts: bool = false")
    .Attr("fixed_capacity: int >= 0 = 0")
    .Attr("padding_keys: list(int) = []")
    .Attr("access_threshold: int >= -1 = -1")
    .Attr("eviction_threshold: int >= -1 = -1")
    .Attr("record_times: bool = false")
    .Attr("use_lookup_clock: bool = false")
    .Attr("max_keys: int >= 0 = 0")
    .Attr("evict_policy: {'lru', 'lfu'} = 'lru'")
    .Attr("shared_counts: string = ''")
    .Attr("initial_rows: int >= 0 = 0")
    .Attr("begun_by: string = ''")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Handle of a growing embedding table, created on first use in a session.

initializer: constant (a), uniform [a, b), normal and truncated_normal (mean a,
  standard deviation b), or pool (a row of initializer_pool [n, dim], chosen by key).
  A row is a function of (seed, key) alone.
fixed_capacity: 0 for a table that grows; else it keeps at most so many keys and
  no rows: MxRecOffsets leads to the rows of a variable.
padding_keys: keys whose rows are never updated.
access_threshold: the count from which on a key has a row; 0: counts stay as they
  are; -1: every key has one when it is first seen.
eviction_threshold: seconds, what MxRecEvict is called with; -1: nothing.
record_times: keep when each key was last seen.
use_lookup_clock: times are those of a clock that each MxRecFindOrInsert moves on.
max_keys: 0, or a number of keys that the table comes down from by itself, those
  first that were seen longest ago (lru) or least often (lfu).
shared_counts: a name; tables of one name in a session count keys together.
initial_rows: what looks up, updates or saves is an error before so many rows have
  been imported (MxRecTableImport), or the content was restored or cleared.
begun_by: the op that imports them, for that error.
shared_name: tables of one session with one shared_name are one table.
)doc");

class TableOp : public OpKernel {
 public:
  explicit TableOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("table_name", &options_.name));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &options_.dim));
    OP_REQUIRES_OK(context,
                   context->GetAttr("record_counts", &options_.record_counts));
    OP_REQUIRES_OK(
        context, context->GetAttr("fixed_capacity", &options_.fixed_capacity));
    OP_REQUIRES_OK(context, ReadPaddingKeys(context, &options_.padding_keys));
    OP_REQUIRES_OK(context, ReadInitializer(context));
    OP_REQUIRES_OK(context, ReadAdmission(context));
    OP_REQUIRES_OK(context, context->GetAttr("initial_rows", &initial_rows_));
    OP_REQUIRES_OK(context, context->GetAttr("begun_by", &begun_by_));
    OP_REQUIRES_OK(context, context->GetAttr("container", &container_));
    OP_REQUIRES_OK(context, context->GetAttr("shared_name", &shared_name_));
    if (shared_name_.empty()) shared_name_ = options_.name;
  }

  void Compute(OpKernelContext* context) override {
    const std::string& container =
        container_.empty() ? context->resource_manager()->default_container()
                           : container_;
    TableResource* resource = nullptr;
    OP_REQUIRES_OK(context, LookUp(context, container, &resource));
    tensorflow::core::ScopedUnref unref(resource);
    OP_REQUIRES_OK(context, CheckSame(resource->table().options()));
    tensorflow::Tensor* handle = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &handle));
    handle->scalar<tensorflow::ResourceHandle>()() =
        tensorflow::MakeResourceHandle<TableResource>(context, container,
                                                      shared_name_);
  }

 private:
  Status LookUp(OpKernelContext* context, const std::string& container,
                TableResource** resource) const {
    tensorflow::ResourceMgr* const resources = context->resource_manager();
    if (resources->Lookup(container, shared_name_, resource).ok()) {
      return Status();
    }
    // What it shares is looked up first: a creator must not use the manager.
    std::shared_ptr<mxrec::SharedCounts> shared;
    TF_RETURN_IF_ERROR(LookUpSharedCounts(resources, container, &shared));
    return resources->LookupOrCreate<TableResource>(
        container, shared_name_, resource,
        [&](TableResource** created) { return Create(shared, created); });
  }

  Status LookUpSharedCounts(
      tensorflow::ResourceMgr* resources, const std::string& container,
      std::shared_ptr<mxrec::SharedCounts>* counts) const {
    if (shared_counts_.empty()) return Status();
    SharedCountsResource* found = nullptr;
    TF_RETURN_IF_ERROR(resources->LookupOrCreate<SharedCountsResource>(
        container, shared_counts_, &found, [](SharedCountsResource** created) {
          *created = new SharedCountsResource();
          return Status();
        }));
    *counts = found->counts();
    found->Unref();
    return Status();
  }

  // Reads options_.initializer; name and dim have been read.
  Status ReadInitializer(OpKernelConstruction* context) {
    mxrec::InitializerOptions* options = &options_.initializer;
    std::string kind;
    float a = 0;
    float b = 0;
    int64_t seed = 0;
    tensorflow::Tensor pool;
    TF_RETURN_IF_ERROR(context->GetAttr("initializer", &kind));
    TF_RETURN_IF_ERROR(context->GetAttr("initializer_a", &a));
    TF_RETURN_IF_ERROR(context->GetAttr("initializer_b", &b));
    TF_RETURN_IF_ERROR(context->GetAttr("initializer_scale", &options->scale));
    TF_RETURN_IF_ERROR(context->GetAttr("seed", &seed));
    TF_RETURN_IF_ERROR(context->GetAttr("initializer_pool", &pool));
    options->a = a;
    options->b = b;
    options->seed = static_cast<uint64_t>(seed);
    if (kind == "constant") {
      options->kind = mxrec::InitializerKind::kConstant;
    } else if (kind == "uniform") {
      options->kind = mxrec::InitializerKind::kUniform;
    } else if (kind == "normal") {
      options->kind = mxrec::InitializerKind::kNormal;
    } else if (kind == "truncated_normal") {
      options->kind = mxrec::InitializerKind::kTruncatedNormal;
    } else {
      options->kind = mxrec::InitializerKind::kPool;
      // The attribute may hold any tensor, and reading it as floats would
      // abort.
      if (pool.dtype() != tensorflow::DT_FLOAT || pool.dims() != 2 ||
          pool.dim_size(1) != options_.dim) {
        return tensorflow::errors::InvalidArgument(
            "table '", options_.name,
            "': initializer_pool must be float of shape [n, ", options_.dim,
            "], got ", tensorflow::DataTypeString(pool.dtype()), " of shape ",
            pool.shape().DebugString());
      }
      const auto values = InputSpan<float>(pool);
      options->pool.assign(values.begin(), values.end());
    }
    return Status();
  }

  static Status ReadPaddingKeys(OpKernelConstruction* context,
                                std::vector<mxrec::Key>* keys) {
    std::vector<int64_t> values;
    TF_RETURN_IF_ERROR(context->GetAttr("padding_keys", &values));
    keys->assign(values.begin(), values.end());
    return Status();
  }

  Status ReadAdmission(OpKernelConstruction* context) {
    mxrec::AdmissionOptions* admission = &options_.admission;
    std::string policy;
    TF_RETURN_IF_ERROR(
        context->GetAttr("access_threshold", &admission->access_threshold));
    TF_RETURN_IF_ERROR(
        context->GetAttr("eviction_threshold", &admission->eviction_threshold));
    TF_RETURN_IF_ERROR(
        context->GetAttr("record_times", &admission->record_times));
    TF_RETURN_IF_ERROR(
        context->GetAttr("use_lookup_clock", &admission->use_lookup_clock));
    TF_RETURN_IF_ERROR(context->GetAttr("max_keys", &admission->max_keys));
    TF_RETURN_IF_ERROR(context->GetAttr("evict_policy", &policy));
    TF_RETURN_IF_ERROR(context->GetAttr("shared_counts", &shared_counts_));
    // A mark, since the table works without it.
    if (context->HasAttr(kCoefficients)) {
      TF_RETURN_IF_ERROR(
          context->GetAttr(kCoefficients, &admission->coefficients));
    }
    admission->evict_policy = policy == "lfu"
                                  ? mxrec::EvictPolicy::kLeastFrequent
                                  : mxrec::EvictPolicy::kLeastRecent;
    return ToTf(mxrec::Table::CompleteOptions(&options_));
  }

  Status Create(const std::shared_ptr<mxrec::SharedCounts>& shared,
                TableResource** resource) const {
    mxrec::TableOptions options = options_;
    options.admission.shared_counts = shared;
    std::shared_ptr<mxrec::Table> table;
    TF_RETURN_IF_ERROR(ToTf(mxrec::Table::Create(std::move(options), &table)));
    mxrec::Registry::Global().Register(table);
    *resource = new TableResource(std::move(table), initial_rows_, begun_by_);
    return Status();
  }

  // Two handle nodes may name one table (a dataset function makes its own):
  // they must agree on what the table is.
  Status CheckSame(const mxrec::TableOptions& existing) const {
    const char* differs = Difference(existing, options_);
    if (differs == nullptr) return Status();
    return tensorflow::errors::InvalidArgument(
        "table '", options_.name, "' exists with another ", differs,
        " than node ", name(),
        " asks for; use another table name or terminate_config_initializer "
        "first");
  }

  // What two tables differ in, null if nothing.
  static const char* Difference(const mxrec::TableOptions& a,
                                const mxrec::TableOptions& b) {
    const mxrec::InitializerOptions& x = a.initializer;
    const mxrec::InitializerOptions& y = b.initializer;
    if (a.dim != b.dim) return "dim";
    if (a.fixed_capacity != b.fixed_capacity) return "fixed_capacity";
    if (a.record_counts != b.record_counts) return "record_counts";
    if (a.padding_keys != b.padding_keys) return "padding_keys";
    if (DifferInAdmission(a.admission, b.admission)) return "admission";
    if (x.seed != y.seed) return "seed";
    if (x.kind != y.kind || x.a != y.a || x.b != y.b || x.scale != y.scale ||
        x.pool != y.pool) {
      return "initializer";
    }
    return nullptr;
  }

  static bool DifferInAdmission(const mxrec::AdmissionOptions& a,
                                const mxrec::AdmissionOptions& b) {
    return a.access_threshold != b.access_threshold ||
           a.eviction_threshold != b.eviction_threshold ||
           a.record_times != b.record_times ||
           a.use_lookup_clock != b.use_lookup_clock ||
           a.max_keys != b.max_keys || a.evict_policy != b.evict_policy;
  }

  mxrec::TableOptions options_;
  std::string shared_counts_;
  int64_t initial_rows_ = 0;
  std::string begun_by_;
  std::string container_;
  std::string shared_name_;
};

REGISTER_KERNEL_BUILDER(Name("MxRecTable").Device(tensorflow::DEVICE_CPU),
                        TableOp);

}  // namespace
}  // namespace mxrec_ops
