switchyard_test(chat_template_test chat_template_test.cc LABELS cpu DEPS switchyard::model)
switchyard_test(template_oracle_test template_oracle_test.cc LABELS cpu DEPS switchyard::model)
