# Threads hash for as many seconds as the argument says; prints whether each round gave the same.
import hashlib
import sys
import threading
import time


def work(number, results):
    state = hashlib.sha256()
    for turn in range(3000):
        state.update(repr((number, turn)).encode())
    results[number] = state.hexdigest()


def a_round():
    results = {}
    threads = [threading.Thread(target=work, args=(number, results)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(results.items())


expected = a_round()
end = time.monotonic() + float(sys.argv[1])
bad = rounds = 0
while time.monotonic() < end:
    bad += a_round() != expected
    rounds += 1
print("bad", bad, "many", rounds > 1)
