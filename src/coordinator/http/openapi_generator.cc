// A program of the build: writes docs/openapi.yaml as JSON into a source file.
//   openapi_generator IN.yaml OUT.cc
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "base/status.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/yaml_reader.h"

int main(int argc, char** argv) {
  using namespace switchyard;                     // NOLINT(google-build-using-namespace): a program
  using namespace switchyard::coordinator::http;  // NOLINT(google-build-using-namespace)
  if (argc != 3) {
    std::fprintf(stderr, "usage: openapi_generator IN.yaml OUT.cc\n");
    return 2;
  }
  std::ifstream in(argv[1], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto value = ReadYaml(text);
  if (!in || !value.ok() || !value->is_object()) {
    std::fprintf(stderr, "%s: %s\n", argv[1],
                 value.ok() ? "cannot be read" : std::string(Message(value.status())).c_str());
    return 1;
  }
  std::ofstream out(argv[2], std::ios::binary);
  out << "// Written by openapi_generator from docs/openapi.yaml.\n"
         "#include \"coordinator/http/openapi_json.h\"\n\n"
         "namespace switchyard::coordinator::http {\n\n"
         "const std::string_view kOpenApiJson = R\"openapi(" +
             JsonText(*value) + ")openapi\";\n\n}  // namespace switchyard::coordinator::http\n";
  return out.flush() ? 0 : 1;
}
