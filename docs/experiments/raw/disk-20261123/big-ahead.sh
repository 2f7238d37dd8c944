python3 big.py 4 1,2,10 nginx='nginx:sendfile on;' before='ring:' ahead='ring:|K1=1' ahead-range2='ring:|K1=1,K0=2' > big-ahead.txt 2>&1
MEM=256 python3 big.py 3 1,5 nginx='nginx:sendfile on;' before='ring:' ahead='ring:|K1=1' > big-ahead-256m.txt 2>&1
