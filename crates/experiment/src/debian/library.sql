-- A library: books that are lent, and questions about them.
CREATE TABLE author (id INTEGER PRIMARY KEY, name TEXT, born INTEGER);
CREATE TABLE book (id INTEGER PRIMARY KEY, author INTEGER, title TEXT, pages INTEGER);
CREATE TABLE loan (book INTEGER, reader INTEGER, day INTEGER, days INTEGER);

BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 150)
INSERT INTO author SELECT i, printf('author %s%d', char(65 + i * 7 % 26), i), 1800 + i * 37 % 190 FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
INSERT INTO book SELECT i, 1 + i * i % 150, printf('%s title %x', char(65 + i * 11 % 26), i * 2654435761 % 65536), 80 + i * 91 % 700 FROM n;
WITH RECURSIVE n(i, x) AS (SELECT 1, 17 UNION ALL SELECT i + 1, (x * 1103515245 + 12345) % 2147483648 FROM n WHERE i < 5000)
INSERT INTO loan SELECT 1 + (x >> 8) % 3000, (x >> 5) % 400, i % 730, 1 + (x >> 12) % 40 FROM n;
CREATE INDEX loan_book ON loan (book);
CREATE INDEX loan_reader ON loan (reader, day);
CREATE INDEX book_author ON book (author);
COMMIT;

SELECT author.name, count(*) AS loans, sum(loan.days) FROM author
    JOIN book ON book.author = author.id JOIN loan ON loan.book = book.id
    WHERE author.born BETWEEN 1850 AND 1950 GROUP BY author.id ORDER BY loans DESC, author.name LIMIT 10;
SELECT substr(title, 1, 1) AS letter, avg(pages), max(pages) FROM book
    WHERE title LIKE '%a%' OR title LIKE '%7_' GROUP BY letter ORDER BY letter;
SELECT reader, day, days, sum(days) OVER (PARTITION BY reader ORDER BY day, days ROWS 5 PRECEDING) AS recent FROM loan
    ORDER BY recent DESC, reader, day LIMIT 5;
SELECT count(*) FROM book WHERE NOT EXISTS (SELECT 1 FROM loan WHERE loan.book = book.id AND loan.days > 30);
UPDATE book SET pages = pages + (SELECT count(*) FROM loan WHERE loan.book = book.id);
DELETE FROM loan WHERE day % 5 = 0;
SELECT group_concat(n) FROM (SELECT reader % 20 AS n, count(DISTINCT book) AS c FROM loan GROUP BY n ORDER BY c DESC, n);
