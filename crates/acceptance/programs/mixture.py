# Threads, signals, regular expressions, child processes, fork, exceptions.
import json, os, re, signal, subprocess, sys, threading, zlib

def work(number, results):
    total = 0
    for i in range(20000):
        total = (total * 31 + i * number) % 1000003
    results[number] = total

results = {}
threads = [threading.Thread(target=work, args=(n, results)) for n in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(results, sort_keys=True))

caught = []
signal.signal(signal.SIGUSR1, lambda number, frame: caught.append(number))
os.kill(os.getpid(), signal.SIGUSR1)
print("caught", caught)

text = "".join(chr(97 + (i * 7) % 26) for i in range(5000))
print(len(re.findall(r"[aeiou][^aeiou]+", text)), zlib.crc32(text.encode()))
print(subprocess.run(["sh", "-c", "echo child; exit 3"], capture_output=True))
print(subprocess.check_output("printf x | tr x y", shell=True))
pid = os.fork()
if pid == 0:
    os._exit(7)
print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
try:
    [][1]
except IndexError as error:
    print("error:", error)
print("to stderr", file=sys.stderr)
sys.exit(42)
