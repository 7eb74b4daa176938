// A client on a raw socket: sends any bytes, and reads responses as strictly as a test should.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard::testing {

struct ClientResponse {
  int status = 0;                                            // 0: no response came
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;                                          // without the chunked coding
  std::vector<std::string> chunks;                           // of a chunked body
  bool is_complete = false;                                  // the body ended as its head announced

  std::string Header(std::string_view lower_case_name) const;
};

// Threads: one at a time. Every read gives up after 200 s, so that a fault ends a test before ctest
// does, and the slowness of a sanitizer does not.
class HttpClient {
 public:
  struct Options {
    int receive_buffer_bytes = 0;  // SO_RCVBUF before the connect; 0 = the system's choice
  };

  explicit HttpClient(uint16_t port) : HttpClient(port, Options()) {}
  HttpClient(uint16_t port, const Options& options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool is_connected() const { return fd_ >= 0; }

  // False if the connection broke.
  bool SendRaw(std::string_view bytes);
  // "METHOD target HTTP/1.1", Host, Content-Length where there is a body, and `headers` (each with
  // its line end).
  static std::string RequestText(std::string_view method, std::string_view target,
                                 std::string_view body = "", std::string_view headers = "");

  // Reads one response. `has_no_body`: it answers HEAD.
  ClientResponse Read(bool has_no_body = false);
  // Reads only the head of the next response; ReadMore() and ReadRest() go on with its body.
  ClientResponse ReadHead();
  // The next chunk of a chunked body, or nothing at its end (`is_complete`) or a broken connection.
  std::optional<std::string> ReadChunk(ClientResponse& response);
  ClientResponse Request(std::string_view method, std::string_view target,
                         std::string_view body = "", std::string_view headers = "");

  // True if the server closed or reset the connection, with nothing left to read.
  bool WaitForClose();

  void ShutdownSending();
  // Closes with a reset.
  void Reset();

  int fd() const { return fd_; }

 private:
  bool Fill();  // reads more; false at the end
  std::optional<std::string> TakeLine();
  std::optional<std::string> TakeBytes(size_t count);

  int fd_ = -1;
  std::string buffer_;
};

// The data of every event in a body of server-sent events; comments are left out.
std::vector<std::string> SseData(std::string_view body);

}  // namespace switchyard::testing
