#define MXREC_ROW_MATH kRowMathBaseline
#include "row_math.inc"
