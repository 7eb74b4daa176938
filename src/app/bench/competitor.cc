#include "app/bench/competitor.h"

#include <csignal>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cpu_topology.h"

namespace switchyard::app {

Competitor::Competitor(int cpu) {
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ != 0) return;
  // Other threads of the parent may hold locks, so nothing here allocates. PinThisThread() does for
  // the CPUs behind the first thousand only; there the child goes where the kernel wants it.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  if (cpu < 1024) PinThisThread(cpu);
  for (;;) {
    asm volatile("");  // a loop without effect could be taken for one that ends
  }
}

Competitor::~Competitor() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

}  // namespace switchyard::app
