python3 big.py 4 1,5 nginx='nginx:sendfile on;' base='ring:' range2='ring:|K0=2' range4='ring:|K0=4' ahead='ring:|K1=1' seq='ring:|K4=1' nolook='ring:|K7=1' > big-designs.txt 2>&1
