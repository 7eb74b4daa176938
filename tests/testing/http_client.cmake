list(APPEND testing_headers http_client.h)
list(APPEND testing_sources http_client.cc)
