// Goroutines on several threads, a loop that only a signal interrupts, a null pointer, a garbage collection.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strings"
	"sync"
	"time"
)

func work(n int) (total uint64) {
	for i := 0; i < 200000; i++ {
		total = total*31 + uint64(i*n)
	}
	return total
}

func main() {
	runtime.GOMAXPROCS(4)
	results := make(map[int]uint64)
	var lock sync.Mutex
	var group sync.WaitGroup
	for n := 0; n < 50; n++ {
		group.Add(1)
		n := n
		go func() {
			defer group.Done()
			total := work(n)
			lock.Lock()
			results[n] = total
			lock.Unlock()
		}()
	}
	group.Wait()
	keys := []int{}
	for n := range results {
		keys = append(keys, n)
	}
	sort.Ints(keys)
	for _, n := range keys {
		fmt.Println(n, results[n])
	}
	// A loop without calls: the runtime interrupts it by a signal.
	stop := false
	runtime.GOMAXPROCS(1)
	go func() { stop = true }()
	spun := 0
	for start := time.Now(); !stop && time.Since(start) < 20*time.Second; {
		for i := 0; i < 10000000; i++ {
			spun ^= i
		}
	}
	fmt.Println("interrupted", stop)
	channel := make(chan string)
	go func() {
		defer close(channel)
		defer func() { channel <- fmt.Sprint("recovered: ", recover()) }()
		var nothing *strings.Builder
		nothing.WriteString("x")
	}()
	for text := range channel {
		fmt.Println(text)
	}
	runtime.GC()
	fmt.Fprintln(os.Stderr, "done")
	os.Exit(4)
}
