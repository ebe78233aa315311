// MxRecLookUpMany: addresses and embeddings of several lookups.
#include "many_utils.h"
#include "mxrec/batch_rows.h"
#include "shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace mxrec_ops {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;

REGISTER_OP("MxRecLookUpMany")
    .Input("handles: N * resource")
    .Input("keys: N * int64")
    .Input("hints: N * int64")
    .Input("counts: C * int32")
    .Input("timestamps: M * int64")
    .Input("default_rows: N * float")
    .Input("restores: R * int32")
    .Output("addresses: N * int64")
    .Output("embeddings: N * float")
    .Output("restored: R * float")
    .Attr("N: int >= 1")
    .Attr("C: int >= 0")
    .Attr("R: int >= 0")
    .Attr("restore_of: list(int) >= 0")
    .Attr("dim: int >= 1")
    .Attr("max_keys: list(int) = []")
    .Attr("coefficients: list(int) = []")
    .Attr("M: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int n = 0, num_counts = 0, num_times = 0, num_restores = 0, dim = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
      TF_RETURN_IF_ERROR(c->GetAttr("C", &num_counts));
      TF_RETURN_IF_ERROR(c->GetAttr("M", &num_times));
      TF_RETURN_IF_ERROR(c->GetAttr("R", &num_restores));
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      for (int i = n; i < 4 * n + num_counts + num_times; ++i) {
        ShapeHandle vector;
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &vector));
      }
      for (int i = 0; i < n; ++i) {
        c->set_output(i, c->input(n + i));
        c->set_output(n + i, c->Matrix(c->Dim(c->input(n + i), 0), dim));
      }
      for (int r = 0; r < num_restores; ++r) {
        ShapeHandle shape;
        TF_RETURN_IF_ERROR(
            c->Concatenate(c->input(4 * n + num_counts + num_times + r),
                           c->Vector(dim), &shape));
        c->set_output(2 * n + r, shape);
      }
      return Status();
    })
    .Doc(R"doc(
Several lookups at once, each as by its own ops: for each i MxRecFindOrInsert
(with counts) or MxRecFind (C = 0), MxRecGatherByAddress, and for each r the rows
of lookup restore_of[r] spread over its batch.

A lookup none of whose outputs is read in this run does not take place.

handles: tables; one may occur several times.
keys: [n_i].
hints: [n_i] or [0].
counts: [n_i] or [0] each; all of them, or none for lookups that only find.
timestamps: [n_i], [1] or [0] each, as of MxRecFindOrInsert; as many as counts, or
  none.
default_rows: [dim] or [0] (zeros), given where the address is 0.
restores: of any shapes, positions in the keys of lookup restore_of[r].
max_keys: for each lookup the largest number of keys a batch may have, 0 for any;
  or none at all.
coefficients: for each lookup what an occurrence counts; or none at all: 1 each.
addresses: [n_i].
embeddings: [n_i, dim].
restored: restores[r].shape + [dim].
)doc");

class LookUpManyOp : public OpKernel {
 public:
  explicit LookUpManyOp(OpKernelConstruction* context) : OpKernel(context) {
    int restores = 0;
    OP_REQUIRES_OK(context, context->GetAttr("N", &n_));
    OP_REQUIRES_OK(context, context->GetAttr("C", &num_counts_));
    OP_REQUIRES_OK(context, context->GetAttr("R", &restores));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
    std::vector<int> restore_of;
    OP_REQUIRES_OK(context, context->GetAttr("restore_of", &restore_of));
    OP_REQUIRES(context, num_counts_ == 0 || num_counts_ == n_,
                tensorflow::errors::InvalidArgument(
                    "counts must be given for all lookups or for none: "
                    "expected 0 or ",
                    n_, ", got ", num_counts_));
    OP_REQUIRES_OK(context, context->GetAttr("M", &num_times_));
    OP_REQUIRES(context, num_times_ == 0 || num_times_ == num_counts_,
                tensorflow::errors::InvalidArgument(
                    "timestamps must be given for all lookups that count or "
                    "for none: expected 0 or ",
                    num_counts_, ", got ", num_times_));
    OP_REQUIRES(context, static_cast<int>(restore_of.size()) == restores,
                tensorflow::errors::InvalidArgument(
                    "restore_of must have one element per restore: expected ",
                    restores, ", got ", restore_of.size()));
    OP_REQUIRES_OK(context, context->GetAttr("max_keys", &max_keys_));
    OP_REQUIRES(context,
                max_keys_.empty() || static_cast<int>(max_keys_.size()) == n_,
                tensorflow::errors::InvalidArgument(
                    "max_keys must have one element per lookup or none: "
                    "expected ",
                    n_, ", got ", max_keys_.size()));
    OP_REQUIRES_OK(context, context->GetAttr("coefficients", &coefficients_));
    OP_REQUIRES(context,
                coefficients_.empty() ||
                    static_cast<int>(coefficients_.size()) == num_counts_,
                tensorflow::errors::InvalidArgument(
                    "coefficients must have one element per counts or none: "
                    "expected ",
                    num_counts_, ", got ", coefficients_.size()));
    restores_of_.resize(n_);
    for (int r = 0; r < restores; ++r) {
      OP_REQUIRES(context, restore_of[r] >= 0 && restore_of[r] < n_,
                  tensorflow::errors::InvalidArgument(
                      "restore_of[", r, "] must be in [0, ", n_, "), got ",
                      restore_of[r]));
      restores_of_[restore_of[r]].push_back(r);
    }
  }

  void Compute(OpKernelContext* context) override {
    std::vector<LookUp> lookups(n_);
    std::vector<int64_t> sizes(n_);
    for (int i = 0; i < n_; ++i) {
      OP_REQUIRES_OK(context, Prepare(context, i, &lookups[i]));
      if (lookups[i].is_wanted) sizes[i] = lookups[i].keys.size();
    }
    OP_REQUIRES_OK(
        context,
        ForEachTable(context, sizes,
                     [&](int i, const mxrec::Parallel& parallel) -> Status {
                       if (!lookups[i].is_wanted) return Status();
                       return Run(lookups[i], parallel);
                     }));
  }

 private:
  struct Restore {
    mxrec::Span<const int32_t> positions;
    float* out = nullptr;
  };
  struct LookUp {
    bool is_wanted = false;
    TableRef table;
    mxrec::Span<const int64_t> keys;
    mxrec::Span<const int64_t> hints;
    mxrec::Occurrences seen;
    const float* default_row = nullptr;
    Tensor temporary;  // addresses that nothing reads
    mxrec::Span<int64_t> addresses;
    Tensor temporary_rows;        // embeddings that only restores read
    float* embeddings = nullptr;  // null if nothing reads them
    std::vector<Restore> restores;
  };

  bool IsWanted(OpKernelContext* context, int i) const {
    if (context->output_required(i) || context->output_required(n_ + i)) {
      return true;
    }
    return std::any_of(
        restores_of_[i].begin(), restores_of_[i].end(),
        [&](int r) { return context->output_required(2 * n_ + r); });
  }

  Status Prepare(OpKernelContext* context, int i, LookUp* lookup) const {
    lookup->is_wanted = IsWanted(context, i);
    if (!lookup->is_wanted) return Status();
    TF_RETURN_IF_ERROR(GetFilledTable(context, i, &lookup->table));
    TF_RETURN_IF_ERROR(AtTable(lookup->table, ReadInputs(context, i, lookup)));
    TF_RETURN_IF_ERROR(HoldRowsForStep(context, lookup->table));
    if (!max_keys_.empty()) {  // names the table itself
      TF_RETURN_IF_ERROR(
          CheckNumberOfKeys(lookup->keys.size(), max_keys_[i], lookup->table));
    }
    const tensorflow::TensorShape shape({lookup->keys.size()});
    Tensor* addresses = &lookup->temporary;
    if (context->output_required(i)) {
      TF_RETURN_IF_ERROR(context->allocate_output(i, shape, &addresses));
    } else {
      TF_RETURN_IF_ERROR(
          context->allocate_temp(tensorflow::DT_INT64, shape, addresses));
    }
    lookup->addresses = OutputSpan<int64_t>(addresses);
    if (context->output_required(n_ + i)) {
      Tensor* embeddings = nullptr;
      TF_RETURN_IF_ERROR(context->allocate_output(
          n_ + i, {lookup->keys.size(), dim_}, &embeddings));
      lookup->embeddings = embeddings->flat<float>().data();
    }
    for (const int r : restores_of_[i]) {
      if (!context->output_required(2 * n_ + r)) continue;
      const Tensor& positions =
          context->input(4 * n_ + num_counts_ + num_times_ + r);
      tensorflow::TensorShape restored_shape = positions.shape();
      restored_shape.AddDim(dim_);
      Tensor* restored = nullptr;
      TF_RETURN_IF_ERROR(
          context->allocate_output(2 * n_ + r, restored_shape, &restored));
      lookup->restores.push_back(
          {InputSpan<int32_t>(positions), restored->flat<float>().data()});
    }
    if (lookup->embeddings == nullptr && lookup->restores.size() > 1) {
      // Several readers see the rows of one instant.
      TF_RETURN_IF_ERROR(context->allocate_temp(
          tensorflow::DT_FLOAT,
          tensorflow::TensorShape({lookup->keys.size(), dim_}),
          &lookup->temporary_rows));
      lookup->embeddings = lookup->temporary_rows.flat<float>().data();
    }
    return Status();
  }

  Status ReadInputs(OpKernelContext* context, int i, LookUp* lookup) const {
    const Tensor& keys = context->input(n_ + i);
    const Tensor& hints = context->input(2 * n_ + i);
    TF_RETURN_IF_ERROR(CheckVector(keys, "keys"));
    TF_RETURN_IF_ERROR(CheckVectorOrEmpty(hints, keys.NumElements(), "hints"));
    lookup->keys = InputSpan<int64_t>(keys);
    lookup->hints = InputSpan<int64_t>(hints);
    if (num_counts_ > 0) {
      const Tensor& counts = context->input(3 * n_ + i);
      TF_RETURN_IF_ERROR(
          CheckVectorOrEmpty(counts, keys.NumElements(), "counts"));
      lookup->seen.counts = InputSpan<int32_t>(counts);
      if (!coefficients_.empty()) lookup->seen.coefficient = coefficients_[i];
    }
    if (num_times_ > 0) {
      const Tensor& timestamps = context->input(3 * n_ + num_counts_ + i);
      TF_RETURN_IF_ERROR(CheckTimes(timestamps, keys.NumElements()));
      lookup->seen.times = InputSpan<int64_t>(timestamps);
    }
    const Tensor& row = context->input(3 * n_ + num_counts_ + num_times_ + i);
    TF_RETURN_IF_ERROR(
        CheckVectorOrEmpty(row, dim_, "default_row", "dim elements"));
    if (row.NumElements() > 0) {
      lookup->default_row = row.flat<float>().data();
    }
    const int table_dim = lookup->table->table().options().dim;
    if (table_dim == dim_) return Status();
    return tensorflow::errors::InvalidArgument(
        "has dim ", table_dim, ", but node ", name(), " expects ", dim_);
  }

  Status Run(const LookUp& lookup, const mxrec::Parallel& parallel) const {
    mxrec::Table& table = lookup.table->table();
    TF_RETURN_IF_ERROR(
        ToTf(num_counts_ > 0
                 ? table.FindOrAdmit(lookup.keys, lookup.hints, lookup.seen,
                                     lookup.addresses, parallel)
                 : table.Find(lookup.keys, lookup.hints, lookup.addresses,
                              parallel)));
    if (lookup.embeddings != nullptr) {
      const mxrec::Span<const int64_t> addresses(lookup.addresses.data(),
                                                 lookup.addresses.size());
      TF_RETURN_IF_ERROR(ToTf(table.Gather(addresses, lookup.default_row,
                                           lookup.embeddings, parallel)));
    }
    for (const Restore& restore : lookup.restores) {
      TF_RETURN_IF_ERROR(Spread(lookup, restore, parallel));
    }
    return Status();
  }

  // Rows over the batch: straight from the table, unless they are at hand.
  Status Spread(const LookUp& lookup, const Restore& restore,
                const mxrec::Parallel& parallel) const {
    const int64_t n = lookup.keys.size();
    if (lookup.embeddings != nullptr) {
      return Checked(
          lookup, mxrec::SpreadRows(lookup.embeddings, n, dim_,
                                    restore.positions, restore.out, parallel));
    }
    const int64_t size = restore.positions.size();
    for (int64_t j = 0; j < size; ++j) {
      const int64_t position = restore.positions[j];
      if (position < 0 || position >= n) {
        return AtTable(lookup.table, tensorflow::errors::InvalidArgument(
                                         "restore[", j, "] = ", position,
                                         " is out of range [0, ", n, ")"));
      }
    }
    thread_local std::vector<int64_t> addresses;
    addresses.resize(size);
    for (int64_t j = 0; j < size; ++j) {
      addresses[j] = lookup.addresses[restore.positions[j]];
    }
    return ToTf(lookup.table->table().Gather(addresses, lookup.default_row,
                                             restore.out, parallel));
  }

  static Status Checked(const LookUp& lookup, const mxrec::Status& status) {
    if (status.ok()) return Status();
    return AtTable(lookup.table, tensorflow::errors::InvalidArgument(
                                     "restore", status.message()));
  }

  int n_ = 0;
  int num_counts_ = 0;
  int num_times_ = 0;
  int dim_ = 0;
  std::vector<std::vector<int>> restores_of_;  // by lookup
  std::vector<int64_t> max_keys_;              // by lookup, or empty
  std::vector<int64_t> coefficients_;          // the same
};

REGISTER_KERNEL_BUILDER(Name("MxRecLookUpMany").Device(tensorflow::DEVICE_CPU),
                        LookUpManyOp);

}  // namespace
}  // namespace mxrec_ops
