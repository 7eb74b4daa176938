switchyard_test(template_oracle_test template_oracle_test.cc LABELS cpu DEPS switchyard::model)
