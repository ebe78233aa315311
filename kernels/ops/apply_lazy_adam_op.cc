// MxRecApplyLazyAdamByAddress: Adam on the rows at addresses only.
#include "apply_ops.h"

namespace mxrec_ops {

REGISTER_OP("MxRecApplyLazyAdamByAddress")
    .MXREC_UPDATE_ONE()
    .MXREC_LAZY_ADAM_HYPERPARAMETERS()
    .Doc(R"doc(
Adam (Kingma and Ba, 2014) in the form of TensorFlow's sparse update, for the
rows of this batch alone. The table counts its LazyAdam steps t, one per call:

  lr_t = learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t)
  m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
  row -= lr_t * m / (sqrt(v) + epsilon)

addresses: [n]; 0 is skipped; gradients of a repeated address are summed first.
gradients: [n, dim].
)doc");

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyLazyAdamByAddress").Device(tensorflow::DEVICE_CPU),
    ApplyOp<LazyAdamRule>);

}  // namespace mxrec_ops
