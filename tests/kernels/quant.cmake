switchyard_test(quant_test quant_test.cc LABELS cpu DEPS switchyard::kernels)
