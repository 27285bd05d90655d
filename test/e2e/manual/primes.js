// #region file
// primes.js: runs in a thread per partition
const isPrime = (n) =>
  n > 1 && !Array.from({ length: Math.sqrt(n) - 1 }, (_, i) => i + 2).some((d) => n % d === 0);

export default function () {
  const known = new Map(); // Created once per partition and key.

  return (numbers) =>
    numbers.map((n) => {
      if (!known.has(n)) known.set(n, isPrime(n));
      return known.get(n);
    });
}
// #endregion
