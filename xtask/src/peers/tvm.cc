// Measures TVM's Disco through its C++ API, with the job of `disco ping`.
//
// Arguments: ping KIND WORKERS ROUNDS, with KIND threads, processes or nodes (two). PEERS_NODELAY=1 sets TCP_NODELAY on
// its sockets. This program is also the process of each worker and of the second node.

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/disco/session.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;
using tvm::runtime::DRef;
using tvm::runtime::Session;

// Calls of TVM's library resolve to these before those of the C library.
static int WithoutDelay(int socket) {
  const char* wanted = getenv("PEERS_NODELAY");
  int on = 1;
  if (socket >= 0 && wanted != nullptr && wanted[0] == '1') {
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  return socket;
}

extern "C" int connect(int socket, const struct sockaddr* address, socklen_t length) {
  using Connect = int (*)(int, const struct sockaddr*, socklen_t);
  static Connect original = reinterpret_cast<Connect>(dlsym(RTLD_NEXT, "connect"));
  int result = original(socket, address, length);
  if (address->sa_family == AF_INET) WithoutDelay(socket);
  return result;
}

extern "C" int accept(int socket, struct sockaddr* address, socklen_t* length) {
  using Accept = int (*)(int, struct sockaddr*, socklen_t*);
  static Accept original = reinterpret_cast<Accept>(dlsym(RTLD_NEXT, "accept"));
  return WithoutDelay(original(socket, address, length));
}

static double Now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static ffi::Function Global(const char* name) { return ffi::Function::GetGlobalRequired(name); }

static pid_t Start(std::vector<std::string> args) {
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  pid_t pid = fork();
  if (pid == 0) {
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  return pid;
}

// Starts worker processes with a pair of pipes each, as TVM's own process pool does.
static ffi::Function ProcessPool(int workers, int groups, ffi::String) {
  return ffi::Function::FromTyped([workers, groups](int worker) -> ffi::Any {
    if (worker == 0) return nullptr;
    int down[2], up[2];
    if (pipe(down) != 0 || pipe(up) != 0) abort();
    std::vector<int> ours = {down[1], up[0]};
    std::vector<std::string> args = {"tvm", "worker"};
    for (int number : {worker, workers, groups, down[0], up[1]}) args.push_back(std::to_string(number));
    for (int end : ours) fcntl(end, F_SETFD, FD_CLOEXEC);
    Start(args);
    close(down[0]);
    close(up[1]);
    return ffi::Shape({up[0], down[1]});
  });
}

static void Register() {
  ffi::Function::SetGlobal("peers.nop", ffi::Function::FromPacked([](ffi::PackedArgs, ffi::Any*) {}));
  ffi::Function::SetGlobal("runtime.disco.create_process_pool", ffi::Function::FromTyped(ProcessPool), true);
  ffi::Function::SetGlobal("runtime.disco.create_socket_session_local_workers",
      ffi::Function::FromTyped([](int workers) {
        return Session::ProcessSession(workers, 1, "runtime.disco.create_process_pool", "");
      }), true);
}

static Session Make(const std::string& kind, int workers) {
  if (kind == "threads") return Session::ThreadedSession(workers, 1);
  if (kind == "processes") return Session::ProcessSession(workers, 1, "runtime.disco.create_process_pool", "");
  // A port of the range that the system does not give to other sockets.
  int port = 20000 + getpid() % 10000;
  Start({"tvm", "node", std::to_string(port), std::to_string(workers / 2)});
  return Global("runtime.disco.SocketSession")(2, workers / 2, 1, "127.0.0.1", port).cast<Session>();
}

// A node that comes before the controller listens ends with an error, and the controller waits for ever.
static void AwaitListener(int port) {
  char wanted[32], line[512];
  snprintf(wanted, sizeof wanted, ":%04X 00000000:0000 0A", port);
  for (int attempt = 0; attempt < 10000; attempt++) {
    FILE* sockets = fopen("/proc/net/tcp", "r");
    bool found = false;
    while (sockets != nullptr && fgets(line, sizeof line, sockets) != nullptr) {
      found = found || strstr(line, wanted) != nullptr;
    }
    if (sockets != nullptr) fclose(sockets);
    if (found) return;
    usleep(500);
  }
}

static void SyncAll(Session& session, int workers) {
  for (int worker = 0; worker < workers; worker++) session->SyncWorker(worker);
}

// Warms up for 100 ms, as `disco ping` does. Then prints the median of up to `rounds` runs within a
// second, at least 11.
template <typename F>
static void Latency(const char* name, int rounds, F sync) {
  std::vector<double> times;
  for (double begin = Now(); Now() - begin < 0.1;) sync();
  double begin = Now();
  for (int round = 0; round < rounds && (round < 11 || Now() - begin < 1.0); round++) {
    double start = Now();
    sync();
    times.push_back((Now() - start) * 1e6);
  }
  std::sort(times.begin(), times.end());
  printf("\"%s\": {\"median_us\": %.3f}, ", name, times[(times.size() - 1) / 2]);
}

static double Calls(Session& session, int workers, int calls, const DRef& function, const DRef* object) {
  SyncAll(session, workers);
  double start = Now();
  for (int call = 0; call < calls; call++) {
    if (object != nullptr) {
      session->CallPacked(function, 1, 2.0, "three", *object);
    } else {
      session->CallPacked(function);
    }
  }
  SyncAll(session, workers);
  return (Now() - start) * 1e6 / calls;
}

int main(int argc, char** argv) {
  Register();
  std::string job = argc > 1 ? argv[1] : "";
  auto number = [argv](int index) { return atoi(argv[index]); };
  if (job == "worker" && argc == 7) {
    Global("runtime.disco.WorkerProcess")(number(2), number(3), number(4), number(5), number(6));
    return 0;
  }
  if (job == "node" && argc == 4) {
    AwaitListener(number(2));
    Global("runtime.disco.RemoteSocketSession")("127.0.0.1", number(2), number(3));
    return 0;
  }
  if (job != "ping" || argc != 5) {
    fprintf(stderr, "usage: tvm ping threads|processes|nodes WORKERS ROUNDS\n");
    return 2;
  }
  std::string kind = argv[2];
  int workers = number(3), rounds = number(4);
  double start = Now();
  {
    Session session = Make(kind, workers);
    SyncAll(session, workers);
    double ready = (Now() - start) * 1e3;
    DRef nop = session->GetGlobalFunc("peers.nop");
    DRef object = session->CallPacked(nop);
    Calls(session, workers, rounds * 100, nop, &object);
    printf("{\"ready_ms\": %.3f, ", ready);
    Latency("sync_one", rounds, [&] { session->SyncWorker(workers - 1); });
    Latency("sync_all", rounds, [&] { SyncAll(session, workers); });
    printf("\"calls_0_args\": {\"per_call_us\": %.4f}, ", Calls(session, workers, rounds * 100, nop, nullptr));
    printf("\"calls_4_args\": {\"per_call_us\": %.4f}}\n", Calls(session, workers, rounds * 100, nop, &object));
    fflush(stdout);
  }
  // Its workers may still run, and a socket session may wait for its node.
  _exit(0);
}
