// MxRecApplyAdamByAddress: Adam on all rows, with gradients of some.
#include "apply_ops.h"

namespace mxrec_ops {

REGISTER_OP("MxRecApplyAdamByAddress")
    .MXREC_UPDATE_ONE()
    .MXREC_ADAM_HYPERPARAMETERS()
    .Doc(R"doc(
Adam (Kingma and Ba, 2014) as TensorFlow applies it to sparse gradients: the
moments of all rows decay, and all rows move by them. For all rows of the table

  m *= beta1;  v *= beta2

then, with the gradients of the rows at addresses,

  m += g * (1 - beta1);  v += g^2 * (1 - beta2)

and again for all rows

  row -= step_size * m / (sqrt(v) + epsilon)

A row that never had a gradient does not move, so the rows that a table does not
have yet are not missed. A step costs time in proportion to the table.

addresses: [n]; 0 is skipped; gradients of a repeated address are summed first.
gradients: [n, dim].
step_size: learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t) of step t.
)doc");

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyAdamByAddress").Device(tensorflow::DEVICE_CPU),
    ApplyOp<AdamRule>);

}  // namespace mxrec_ops
