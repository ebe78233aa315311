// MxRecApplyAdagradByAddress: Adagrad on the rows at addresses.
#include "apply_ops.h"

namespace mxrec_ops {

REGISTER_OP("MxRecApplyAdagradByAddress")
    .MXREC_UPDATE_ONE()
    .MXREC_ADAGRAD_HYPERPARAMETERS()
    .Doc(R"doc(
Adagrad (Duchi et al., 2011) with a small epsilon:

  s += g^2;  row -= learning_rate * g / (sqrt(s + epsilon) + root_epsilon)

addresses: [n]; 0 is skipped; gradients of a repeated address are summed first.
gradients: [n, dim].
initial_accumulator_value: of s, for every row of the table.
epsilon, root_epsilon: at least 0. TensorFlow's sparse Adagrad has the latter
  alone.
)doc");

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyAdagradByAddress").Device(tensorflow::DEVICE_CPU),
    ApplyOp<AdagradRule>);

}  // namespace mxrec_ops
