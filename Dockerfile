# specsim on a CPU: docker build --tag specsim . && docker run --rm --volume "$PWD:/work" specsim check sglang@. --ci
FROM python:3.12-slim

ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu

# git reads the base of a pull request. The checkout is its user's, who is nobody in here.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends git \
 && rm -rf /var/lib/apt/lists/* \
 && git config --system --add safe.directory '*'

COPY . /specsim
RUN pip install --no-cache-dir --no-deps --index-url "$TORCH_INDEX_URL" "$(grep '^torch==' /specsim/constraints.txt)" \
 && pip install --no-cache-dir --constraint /specsim/constraints.txt /specsim

ENV SPECSIM_CACHE_DIR=/var/cache/specsim
WORKDIR /work
ENTRYPOINT ["specsim"]
