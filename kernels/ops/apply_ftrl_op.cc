// MxRecApplyFtrlByAddress: FTRL-proximal on the rows at addresses.
#include "apply_ops.h"

namespace mxrec_ops {

REGISTER_OP("MxRecApplyFtrlByAddress")
    .MXREC_UPDATE_ONE()
    .MXREC_FTRL_HYPERPARAMETERS()
    .Doc(R"doc(
FTRL-proximal (McMahan et al., 2013) as TensorFlow's sparse FtrlV2 computes it:

  new_accum = accum + g^2;  p = -learning_rate_power
  linear += g + 2 * l2_shrinkage * row
            - (new_accum^p - accum^p) / learning_rate * row
  row = (clip(linear, -l1, l1) - linear)
        / (new_accum^p / learning_rate + 2 * l2)

A row whose denominator is 0 keeps its value.

addresses: [n]; 0 is skipped; gradients of a repeated address are summed first.
gradients: [n, dim].
learning_rate: positive.
learning_rate_power: at most 0.
initial_accumulator_value: of accum, for every row of the table; linear begins
  at 0.
l1, l2, l2_shrinkage: at least 0.
)doc");

REGISTER_KERNEL_BUILDER(
    Name("MxRecApplyFtrlByAddress").Device(tensorflow::DEVICE_CPU),
    ApplyOp<FtrlRule>);

}  // namespace mxrec_ops
