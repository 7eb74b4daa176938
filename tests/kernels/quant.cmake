switchyard_test(quant_test quant_test.cc LABELS cpu DEPS switchyard::kernels)
switchyard_test(panel_test panel_test.cc LABELS cpu DEPS switchyard::kernels)
switchyard_test(panel_dot_test panel_dot_test.cc LABELS cpu DEPS switchyard::kernels)
switchyard_test(matmul_test matmul_test.cc LABELS "cpu;threads" DEPS switchyard::kernels)
