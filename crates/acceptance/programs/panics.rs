//! Threads of which one panics, a channel, a panic that is caught.

use std::sync::{Arc, Mutex, mpsc};

fn work(n: u64, sum: &Mutex<u64>) -> u64 {
    if n == 3 {
        panic!("three");
    }
    for i in 0..10_000 {
        *sum.lock().unwrap() += i ^ n;
    }
    n
}

fn main() {
    std::panic::set_hook(Box::new(|_| eprintln!("a panic")));
    let sum = Arc::new(Mutex::new(0));
    let spawn = |n| {
        let sum = sum.clone();
        std::thread::spawn(move || work(n, &sum))
    };
    let threads: Vec<_> = (0..8).map(spawn).collect();
    for thread in threads {
        println!("{:?}", thread.join().map_err(|_| "panicked"));
    }
    println!("{}", sum.lock().unwrap());
    let (sender, receiver) = mpsc::channel();
    for n in 0..4 {
        let sender = sender.clone();
        std::thread::spawn(move || sender.send(n * n).unwrap());
    }
    drop(sender);
    println!("{}", receiver.iter().sum::<i32>());
    let empty: Vec<i32> = Vec::new();
    println!("{:?}", std::panic::catch_unwind(|| empty[std::env::args().count()]).is_err());
    std::process::exit(11);
}
