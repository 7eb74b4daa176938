switchyard_test(roofline_test roofline_test.cc LABELS cpu DEPS switchyard::kernels)
