// MxRecTable: the handle of a table, which it creates on first use.
#include "op_utils.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;

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
    OP_REQUIRES_OK(context, context->GetAttr("container", &container_));
    OP_REQUIRES_OK(context, context->GetAttr("shared_name", &shared_name_));
    if (shared_name_.empty()) shared_name_ = options_.name;
  }

  void Compute(OpKernelContext* context) override {
    const std::string& container =
        container_.empty() ? context->resource_manager()->default_container()
                           : container_;
    TableResource* resource = nullptr;
    OP_REQUIRES_OK(
        context,
        context->resource_manager()->LookupOrCreate<TableResource>(
            container, shared_name_, &resource,
            [this](TableResource** created) { return Create(created); }));
    tensorflow::core::ScopedUnref unref(resource);
    OP_REQUIRES_OK(context, CheckSame(resource->table().options()));
    tensorflow::Tensor* handle = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &handle));
    handle->scalar<tensorflow::ResourceHandle>()() =
        tensorflow::MakeResourceHandle<TableResource>(context, container,
                                                      shared_name_);
  }

 private:
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

  Status Create(TableResource** resource) const {
    std::shared_ptr<mxrec::Table> table;
    TF_RETURN_IF_ERROR(ToTf(mxrec::Table::Create(options_, &table)));
    mxrec::Registry::Global().Register(table);
    *resource = new TableResource(std::move(table));
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
    if (x.seed != y.seed) return "seed";
    if (x.kind != y.kind || x.a != y.a || x.b != y.b || x.scale != y.scale ||
        x.pool != y.pool) {
      return "initializer";
    }
    return nullptr;
  }

  mxrec::TableOptions options_;
  std::string container_;
  std::string shared_name_;
};

REGISTER_KERNEL_BUILDER(Name("MxRecTable").Device(tensorflow::DEVICE_CPU),
                        TableOp);

}  // namespace
}  // namespace mxrec_ops
