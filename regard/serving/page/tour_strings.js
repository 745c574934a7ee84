// Strings of the guided tour, with a text for each stop of tour.js. They are loaded when the tour is opened.

/** Commands that train a small model of each kind. */
const TRAININGS = {
  transformer: "regard train demo --out runs/transformer",
  nat: "regard train demo --set model.kind=nat --out runs/nat",
  vit: "regard demo --vision --out runs/vit",
  swin: "regard train cifar10-swin --data FOLDER --out runs/swin",
  croco: "regard train croco-scenes --set model.preset=micro --set batch.pairs=16 --set training.steps=500 --out runs/croco",
};

export const STRINGS = {
  en: {
    next: "Next",
    previous: "Back",
    end: "End the tour",
    again: "Show this stop again",
    away: "You have opened something else since. “Show this stop again” takes you back to this stop.",
    missing: (kind) => `This server has no ${kind}, so this stop has only its text. To train a small one and serve it too:`,
    kinds: { transformer: "translator", nat: "non-autoregressive translator", vit: "ViT", swin: "Swin Transformer", croco: "CroCo model" },
    trainings: TRAININGS,
    termsTitle: "What the words mean",
    terms: [
      ["Token", "A word or a piece of a word; the unit that the model reads and writes."],
      ["Vector", "A list of numbers. Inside the model, every token is a vector."],
      ["Embedding", "The vector that a token starts with: a row of a learned table."],
      ["Query q, key k, value v", "Three vectors computed from one token: what it looks for, what it can be found by, what it hands over."],
      ["Score", "q·k/√d, where d is the length of q and k: how well a key fits a query. Softmax turns scores into weights. In the search, score means something else: how good a translation is."],
      ["Softmax", "e to the power of each number, divided by their sum: positive numbers that add up to 1."],
      ["Weight", "The share of a key's value in the answer. A map of weights has a row per query and a column per key. The numbers that training learns are called weights too."],
      ["Entropy, mean distance", "Facts about the map of a head, averaged over the queries: how widely the weights are spread (0 bits: one key; 2 bits: as much as four equal keys), and how many tokens away the keys are that it reads."],
      ["Head", "One attention with its own W_Q, W_K and W_V. A layer has several, side by side."],
      ["Encoder, decoder", "The part that reads the source, and the part that writes the translation."],
      ["Cross-attention", "Attention with queries of the decoder and keys and values of the encoder."],
      ["Mask", "What a query may not read; its score is −∞ and its weight 0."],
      ["Residual", "The sum of the input and the output of a sublayer: x + y."],
      ["LayerNorm", "Subtracts the mean of a vector and divides by its standard deviation. x̂ is x after LayerNorm."],
      ["Feed-forward layer", "Two linear layers with an activation between them; changes every position by itself."],
      ["Logit", "The product of the last vector with the vector of a vocabulary token. Softmax turns logits into probabilities."],
      ["Log-probability", "The logarithm of a probability: 0 is certain, more negative is less likely. Logarithms are added where probabilities are multiplied."],
      ["BOS, END, MASK", "Tokens that begin a translation, end it, and stand for what is still to be predicted."],
      ["Hypothesis", "A beginning of a translation, or a whole one, that the search is considering."],
      ["Beam", "The hypotheses that are kept at each step; the beam width is their number."],
      ["Score of a translation", "Its log-probability divided by the length penalty; higher is better."],
      ["Confidence", "A calibrated probability that the translation agrees with a reference. It is estimated with validation data."],
      ["Loss, gradient", "The loss says how wrong the model is; the gradient, in which direction each learned number has to change."],
    ],
    stops: [
      { title: "What you will see",
        text: "This is your model at work on your sentence, every number its own. A Transformer turns tokens (words or pieces of words) into "
          + "vectors (lists of numbers), lets them exchange information by attention, and turns the last vector into the next token. The encoder reads the source; "
          + "the decoder writes the translation. The tour takes attention apart first, then "
          + "puts the model together again. You can change the sentence at any stop, and click everything." },
      { title: "Attention is a lookup",
        text: "A position asks a question, its query q. Every token has a key k, what it can be found by, and a value v, what it hands "
          + "over. Attention = softmax(q·kᵀ/√d)·v, where d is the length of q and k: multiply the query with every key to get scores, let softmax turn the scores into weights that add up to 1, "
          + "and average the values with them. The table shows one head (one of several attentions side by side) of the cross-attention of the last decoder layer (its name ends in cross), where the translation reads the source: the query is the position that predicts the second token of the translation, and its row says so; the keys are the source tokens. Read it from left to right; the key with the longest bar contributes most to the result. Below is the same "
          + "with two tokens: change a number there and watch the weights." },
      { title: "Why divide by √d",
        text: "q·k is a sum of d products, so it spreads in proportion to √d. Without the division large scores make softmax nearly 1 for one key and "
          + "0 for the rest; in these flat ends softmax hardly reacts to its input, so training gets no signal (the gradient vanishes). The table below shows the factor of your model, usually 1/√d, where d is the width of a head: d = 16 gives 1/4, d = 64 gives 1/8. The line above the table says what the weight would be without it. "
          + "In the example at the bottom, untick ÷ √4: 0.73 and 0.27 become 0.88 and 0.12." },
      { title: "The mask",
        text: "A decoder that predicts the next token must not read it. Its self-attention gives every later position the score −∞, and e^−∞ = 0: the weight "
          + "is exactly zero, not just small. These are the grey rows. A position is named after the token that it predicts, so it has read only the tokens before that one. Cross-attention and the encoder have no such mask, because the source is known from the start." },
      { title: "Self-attention and cross-attention",
        text: "In self-attention q, k and v come from one sequence: the source reads itself, or the target reads itself. In cross-attention the "
          + "query comes from the decoder, the keys and values from the encoder: this is where the target reads the source. The three groups of maps are these "
          + "three uses of one mechanism. Rows are queries, columns are keys, and every row adds up to 1. Entropy and mean distance are explained under What the words mean." },
      { title: "Several heads",
        text: "A softmax gives one distribution per query; several heads give several. So the width is split among heads: each has its own learned matrices W_Q, W_K and W_V, attends by "
          + "itself, and their outputs are joined and mixed by one more, W_O; the next stop shows them. In the thumbnails, too, rows are queries and columns are keys, in the same order as in the large map. "
          + "Look for yourself whether the heads differ: one may follow neighbours, another a kind of word; in a small model such as the demo, several heads of the last layer show the same diagonal. "
          + "The cost does not grow: 8 heads of width 64, for example, cost as much as one head of width 512." },
      { title: "Where q, k and v come from",
        text: "From three matrices: q = x·W_Q, k = x·W_K, v = x·W_V, here for the first number of each vector (the small ₀) and with the first terms of the sum. x is the vector of the token; in cross-attention, k and v are computed from h, the encoder output. x̂ means that your model normalises x first, see the next stop. The matrices are what training learns. The strips show q and k; v is drawn in step 6. "
          + "A single number before the result is a bias, a learned number that some models add. "
          + "With rotary positions, q and k are also rotated by an angle that depends on the position." },
      { title: "Around attention: Add & Norm and feed-forward",
        text: "Attention never stands alone. Its result is added to its input (residual), so that no information is lost and gradients reach "
          + "the lowest layer. LayerNorm keeps the numbers in range: it subtracts the mean of a vector and divides by its standard deviation, after the sum in the original paper (post-norm), before the sublayer in most vision models (pre-norm). If step 1 is x̂·W, your model is pre-norm: LayerNorm is applied at the input of each sublayer, to x; q, k and v are computed from the result, x̂, and step 8 only adds y to x itself. In a post-norm model, step 8 shows LayerNorm too. y is the vector after the output projection, so these two strips are equal. "
          + "Then the feed-forward layer changes every position by itself: wider, activation, narrow again, such as 512 → 2048 → 512 in the original paper. Step 9 shows it." },
      { title: "Positions",
        text: "Swap two tokens and attention alone would give the same vectors, swapped: it sees a set, not an order. So each position gets a vector of its own. It is added to the embedding, not appended: the width stays the same, and training "
          + "finds features in which the two do not disturb each other. "
          + "The sinusoidal encoding of position p consists of sin(p/10000^(2i/d)) and cos(p/10000^(2i/d)) for i = 0, 1, … d/2 − 1. The similarity of two positions then depends only on their distance, and there are encodings for any length, also longer than any sentence in training; learned ones end at the length that was trained. Rotary encodings rotate q and k "
          + "instead, so that q·k depends on the distance. In the similarity picture, the band along the diagonal means: near positions look alike, farther ones less and less, though not evenly. Open Compare the encodings of each kind, below: among them are two simple forms, “diagonal” (position p is the unit vector e_p) and “diagonal, counting” (p · e_p)." },
      { title: "From words to vectors",
        text: "Text is split into tokens from a fixed vocabulary; rare words become several pieces, so that the table stays small. Each token is an index, and the index "
          + "selects a row of the embedding table: the first strips of the picture, with a row for each token. The numbers below a strip are those of the token named before them, in the encoder END. BOS begins a translation, END ends it, padding fills a batch and is masked." },
      { title: "Encoder and decoder",
        text: "Two stacks of layers, none of which share weights. An encoder layer is self-attention and feed-forward; a decoder layer has cross-attention in between. "
          + "Follow one token downwards: an attention block shows a map of who read whom, a feed-forward block the vector that it adds, and each Add the vector of the token after the addition." },
      { title: "Vectors that know their context",
        text: "In the embedding a word, for example “bank”, is the same vector in every sentence. After the encoder it is not: attention has mixed in its neighbours. These vectors are useful by themselves, "
          + "for classifiers or search: in Python, regard.Embedder (a model that turns texts into vectors) and translator.embed() return them. See in layer 1, the second one, which tokens a token took its context from." },
      { title: "One token at a time",
        text: "The decoder starts with BOS. Its last vector is multiplied with a learned vector of every token of the vocabulary; softmax turns "
          + "these products, the logits, into probabilities. The chosen token is appended and read in the next step, until END is chosen. "
          + "Press Play: the framed row is the position that is being computed. Its candidates are the bars at the end of the decoder: choose a token with the slider, then scroll down to them." },
      { title: "All tokens in one pass",
        text: "A non-autoregressive model fills all positions in parallel. It must know the length first: a classifier predicts it from the source, or there are more positions than needed and the text ends at END. "
          + "It is many times faster and somewhat less accurate, because a word cannot see which word its neighbour chose. Further iterations mask the least certain tokens (struck through) and predict them again. "
          + "In a short sentence they often return unchanged; where one changes, it has a frame. Try a longer sentence." },
      { title: "How it was trained",
        text: "In training the decoder reads the correct translation, shifted by one (teacher forcing), so that all positions are trained in one pass; the mask hides from every position the token that it has to predict. In the map, rows are what is predicted and columns what was read. "
          + "In use it reads its own output, mistakes included. Scheduled sampling lets it read some of its own tokens in training. Guided attention pulls the maps of the cross-attention "
          + "towards a given alignment, by a loss or by weights added to the scores." },
      { title: "Beam search",
        text: "Taking the most probable token at each step (greedy) can miss the best sentence; trying all sentences is impossible. Beam search keeps the best few hypotheses at each step. "
          + "Step through the tree: some hypotheses are kept at first, but lead nowhere. In an easy sentence the first token of each step wins, and greedy search (beam width 1) finds the same translation; in harder ones a token that was second can win: enter a sentence unlike those of the training, such as “He will come tomorrow because it rains”, and compare the beam widths 1 and 5. Candidates far down the list are unlikely tokens, such as <bos>. "
          + "Probabilities below 1 make long sentences look worse, so the sum of log-probabilities is divided by a length penalty: length^α, or ((5+length)/6)^α, which grows more slowly. α = 0 means no penalty; the larger α, the more longer translations are preferred." },
      { title: "The alignment",
        text: "Point at a word of the translation: the source words that its cross-attention read light up. With “I love apples”, 我 reads “I”, 喜欢 reads “love”, 苹果 reads “apples”. "
          + "The model was given no dictionary; it learned this because it makes the next token easier to predict. "
          + "The confidence of a translation is the calibrated probability that it agrees with a reference, not the product of the probabilities of its tokens: if another wording is right too, its tokens are less probable, but the sentence need not be worse." },
      { title: "Why this word",
        text: "Attention shows what was read, not what decided. Here the score of the chosen word is shared out among the words that the model has read: blue ones speak for it, "
          + "orange ones against it. Integrated gradients compute the shares; occlusion, which replaces one word at a time, checks them: both should find much the same words important, but order and sizes may differ. "
          + "Enter another word under Why not: the question changes, and so do the shares." },
      { title: "Try it: what if",
        text: "Attention weights suggest a cause; an experiment tests it. Click a head of decoder.0.cross to switch it off. If the translation stays the same, compare its score: a small change means that this head was not needed for this sentence, because other heads and layers suffice. Even with all heads of the layer off, the translation can survive: the cross-attention of the other layers still reads the source. "
          + "Then make attention sharper or flatter (scale of scores), or change one word and see which output tokens change." },
      { title: "The cost of attention",
        text: "The matrix has one cell per pair of tokens: twice as long a sentence has four times as many cells. Two ways round it: local attention reads only a "
          + "neighbourhood, and routing attention lets the model learn clusters and attend within them. Both keep the softmax. In regard the kind is one line "
          + "of the recipe, the file of settings for training: full, local, linear or routing." },
      { title: "Another order: linear attention",
        text: "First the same computation as before, with columns in place of rows. Step 6 is weights · V, with one row per token; with one column per token, the scores are A = KᵀQ and the output is O = V·softmax(A). Without softmax, V(KᵀQ) = (V·Kᵀ)Q, and V·Kᵀ has a size that does not depend on the "
          + "length: the cost falls from n² to n for n tokens. Linear attention does this, with a positive function of q and k in place of softmax. "
          + "What is lost is sharpness: it cannot put all weight on one key." },
      { title: "Images: ViT",
        text: "An image becomes a sequence of patches. In the original ViT, 224×224 pixels are 196 patches of 16×16×3 = 768 numbers, each projected to a token. A class token is put in front (197 tokens), learned positions are added, "
          + "and an encoder with 12 heads of width 64 does the rest; the model below may be smaller. Rollout multiplies the attention of all layers and shows which patches reached the answer. Classes and probabilities are those of the served model, which may be barely trained." },
      { title: "Images: Swin",
        text: "Attention over all patches costs n². Swin attends within windows, shifts the windows by half in every second layer so that information crosses their borders, and merges 2×2 patches "
          + "between stages, so that later windows see more of the image. Click a patch: only its own window lights up. Here, too, the probabilities are those of the served model, which may be barely trained." },
      { title: "Two views: CroCo",
        text: "CroCo masks most of one view and completes it from a second view of the same scene. Its decoder block has self-attention, cross-attention to the other view, and a feed-forward layer, each with a "
          + "residual connection. To fill in a patch, a trained model should find the same point in the other view: cross-attention becomes matching. If the served model is barely trained, its matches are weak. DUSt3R and MASt3R build on these blocks." },
      { title: "All together",
        text: "The whole model again. You should now be able to say of every block what it reads, what it adds and why it is there. Play it once more with a sentence of your own, click a block that is not clear, "
          + "and send a view to someone with Copy link." },
    ],
  },
  zh: {
    next: "下一站",
    previous: "上一站",
    end: "结束导览",
    again: "重新显示本站",
    away: "你已打开别的内容。点击“重新显示本站”可以回来。",
    missing: (kind) => `此服务器上没有${kind}，这一站只有文字。可以这样训练一个小模型，再一起启动：`,
    kinds: { transformer: "翻译模型", nat: "非自回归翻译模型", vit: " ViT", swin: " Swin Transformer", croco: " CroCo 模型" },
    trainings: TRAININGS,
    termsTitle: "名词解释",
    terms: [
      ["词元", "一个词，或词的一部分；模型读写的单位。"],
      ["向量", "一串数字。在模型内部，每个词元都是一个向量。"],
      ["词嵌入", "词元最初的向量，即一张学到的表中的一行。"],
      ["查询 q、键 k、值 v", "由一个词元算出的三个向量：它在找什么，靠什么被找到，交出什么内容。"],
      ["分数", "q·k/√d（d 是 q 和 k 的长度），表示键与查询有多匹配。softmax 把分数换算成权重。“分数”指注意力分数，“得分”指译文的好坏。"],
      ["softmax", "以各个数为指数计算 e 的幂，再除以总和，得到总和为 1 的正数。"],
      ["权重", "一个键的值在答案中所占的份额。权重图的一行是一个查询，一列是一个键。训练学到的参数也叫权重。"],
      ["熵、平均距离", "描述一个头的注意力图，对所有查询取平均：权重有多分散（0 比特表示只看一个键，2 比特相当于平均分给四个键）；所读的键离查询有几个词元远。"],
      ["头", "一组独立的注意力，有自己的 W_Q、W_K、W_V。一层里有几个头并列。"],
      ["编码器、解码器", "读源句的部分，和写译文的部分。"],
      ["交叉注意力", "查询来自解码器、键和值来自编码器的注意力。"],
      ["掩码", "规定查询不能读什么：分数为 −∞，权重为 0。"],
      ["残差", "子层的输入与输出之和：x + y。"],
      ["层归一化", "把向量减去均值，再除以标准差。x̂ 是 x 归一化后的结果。"],
      ["前馈网络", "两个线性层，中间有激活函数；对每个位置单独变换。"],
      ["logit", "最后的向量与词表中一个词元的向量的乘积。softmax 把 logit 换算成概率。"],
      ["对数概率", "概率的对数：0 表示确定无疑，越负越不可能。概率相乘，就是对数相加。"],
      ["BOS、END、MASK", "分别表示译文开始、译文结束、尚待预测的位置。"],
      ["候选（hypothesis）", "搜索正在考虑的译文，或译文的开头。"],
      ["束（beam）", "每一步保留的几个候选，束宽就是它们的个数。"],
      ["得分", "译文的对数概率除以长度惩罚，越高越好。"],
      ["置信度", "译文与参考译文一致的概率，根据验证数据校准。"],
      ["损失、梯度", "损失表示模型错得多远；梯度表示每个参数该往哪个方向调整。"],
    ],
    stops: [
      { title: "你将看到什么",
        text: "这是你自己的模型在处理你的句子，所有数字都来自这个模型。Transformer 把词元（词，或词的一部分）变成向量（一串数字），让向量之间通过注意力交换信息，再把最后一个向量变成下一个词元。编码器读源句，解码器写译文。"
          + "导览先拆开注意力，再把模型重新组装起来。每一站都可以换句子，看到的一切都可以点击。" },
      { title: "注意力就是查找",
        text: "一个位置提出问题，就是查询 q。每个词元都有一个键 k（靠什么被找到）和一个值 v（交出什么内容）。注意力 = softmax(q·kᵀ/√d)·v，其中 d 是 q 和 k 的长度：查询与每个键相乘得到分数，"
          + "softmax 把分数换算成总和为 1 的权重，再用权重对值取平均。表格里是解码器最后一层的交叉注意力（名称以 cross 结尾）中的一个头，也就是几个并列的注意力之一；译文通过交叉注意力读取源句。查询是预测译文第二个词元的位置（该行的标签写明了这个词元），键是源句的词元。从左往右看，条形最长的键对结果贡献最大。下面是只有两个词元的例子，改一个数字，看权重怎样变化。" },
      { title: "为什么要除以 √d",
        text: "q·k 是 d 个乘积之和，它的波动范围与 √d 成正比。如果不除，分数过大，softmax 会让一个键接近 1、其余接近 0；在这样平坦的两端，输入变了，softmax 的输出也几乎不变，训练得不到信号（梯度消失）。"
          + "下面的表里是你的模型的系数，通常是 1/√d，d 是一个头的宽度：d = 16 时是 1/4，d = 64 时是 1/8。表上方的一行写出了不乘这个系数时的权重。在最下面的例子里取消勾选 ÷ √4：0.73 和 0.27 变成 0.88 和 0.12。" },
      { title: "掩码",
        text: "解码器要预测下一个词元，就不能先看到它。解码器自注意力把后面所有位置的分数设为 −∞，而 e^−∞ = 0：权重恰好是零，而不只是很小。表中灰色的行就是这些位置。每个位置以它要预测的词元命名，所以它读到的只是那个词元之前的内容。"
          + "交叉注意力和编码器不需要这种掩码，因为源句一开始就是已知的。" },
      { title: "自注意力与交叉注意力",
        text: "自注意力的 q、k、v 来自同一个序列：源句读自己，或者译文读自己。交叉注意力的查询来自解码器，键和值来自编码器，译文就在这里读取源句。"
          + "三组图，就是同一机制的三种用法。行是查询，列是键，每一行的权重之和为 1。熵和平均距离的含义见“名词解释”。" },
      { title: "多个头",
        text: "一个 softmax 对每个查询只给出一个分布，几个头就能给出几个。所以把宽度分给几个头：每个头有自己的 W_Q、W_K、W_V（学到的矩阵，下一站会看到），各自计算注意力，输出拼接后再由矩阵 W_O 混合。"
          + "小图也是行为查询、列为键，顺序与大图相同。看看各个头是否真的不同：有的头看相邻的词元，有的头看某一类词；像演示模型这样的小模型，最后一层有几个头都是同样的对角线。计算量并不增加：比如 8 个宽度为 64 的头，和一个宽度为 512 的头相当。" },
      { title: "q、k、v 从哪里来",
        text: "来自三个矩阵：q = x·W_Q，k = x·W_K，v = x·W_V，这里算出各向量的第一个数（下标 ₀），并列出求和的前几项。x 是词元的向量；在交叉注意力里，k 和 v 由编码器的输出 h 算出。写成 x̂，表示你的模型先把 x 归一化，见下一站。训练学到的就是这些矩阵。色条画的是 q 和 k，v 到第 6 步才画出。"
          + "等号前如果有一个单独的数，那是偏置，即有些模型加上的一个学到的数。使用旋转位置编码时，q 和 k 还要按位置旋转一个角度。" },
      { title: "注意力之外：残差、归一化与前馈网络",
        text: "注意力从不单独使用。它的结果加到输入上（残差），信息不会丢失，梯度也能传到最底层。层归一化把向量减去均值、除以标准差，使数值保持在合适的范围：原论文放在相加之后（post-norm），视觉模型大多放在子层之前（pre-norm）。如果第 1 步是 x̂·W，你的模型就是 pre-norm：在每个子层的输入处把 x 归一化，q、k、v 由得到的 x̂ 算出，第 8 步只是把 y 加到 x 本身上。post-norm 的模型在第 8 步还会显示层归一化。y 就是输出投影之后的向量，所以这两条色条相同。"
          + "然后前馈网络对每个位置单独变换：先变宽，经过激活函数，再变窄，比如原论文中的 512 → 2048 → 512。见第 9 步。" },
      { title: "位置",
        text: "单靠注意力，交换两个词元，得到的向量也只是跟着交换：它看到的是集合，而不是顺序。所以每个位置要有自己的向量。它加到词嵌入上，而不是拼接在后面：宽度不变，训练会让两者在不同的特征里互不干扰。"
          + "位置 p 的正弦编码由 sin(p/10000^(2i/d)) 和 cos(p/10000^(2i/d)) 组成，i = 0, 1, …, d/2 − 1。这样，两个位置的相似度只取决于它们的距离，而且适用于任意长度，比训练时所有句子更长也可以；可学习编码只到训练过的长度。旋转编码改为旋转 q 和 k，使 q·k 取决于两者的距离。相似度图里沿对角线的一条带表示：相邻位置的编码相近，越远越不相似，但变化并不均匀。展开下方的“比较各种编码”，其中有两种简单的形式：“对角编码”（位置 p 是单位向量 e_p）和“计数的对角编码”（p · e_p）。" },
      { title: "从词到向量",
        text: "文本切分成固定词表里的词元；少见的词拆成几段，词表才不会太大。每个词元是一个编号，编号对应嵌入表中的一行，也就是图中最上面的色条，每个词元一行。色条下方的数字属于写在前面的那个词元，编码器里是 END。"
          + "BOS 表示译文开始，END 表示结束，PAD 把一批句子补到同样长，会被掩码遮住。" },
      { title: "编码器与解码器",
        text: "两组堆叠起来的层，各层都不共享权重。编码器的一层是自注意力和前馈网络，解码器的一层在两者之间多一个交叉注意力。"
          + "顺着一个词元往下看：注意力块里的方图表示谁读取了谁，前馈网络块里是它要加上的向量，每个相加块里是相加之后这个词元的向量。" },
      { title: "带有上下文的向量",
        text: "在词嵌入里，一个词（例如 “bank”）在任何句子中都是同一个向量；经过编码器就不同了，注意力把邻近词的信息混了进来。这样的向量本身就有用，可以用于分类或检索："
          + "在 Python 里用 regard.Embedder（把文本变成向量的模型）或 translator.embed() 得到。看第 1 层（从 0 数起）：每个词元从哪些词元那里得到上下文。" },
      { title: "逐个生成词元",
        text: "解码器从 BOS 开始。最后的向量与词表中每个词元的一个向量（也是学到的）相乘，这些乘积叫 logit，softmax 再把它们换算成概率。选中的词元接在后面，下一步再读进去，直到选中 END。点击“播放”：加框的行是正在计算的位置。它的候选是解码器末尾的条形：用滑块选好一个词元，再向下滚动查看。" },
      { title: "一次生成全部词元",
        text: "非自回归模型并行填写所有位置。它要先知道长度：由分类器根据源句预测，或者多留一些位置，在 END 处截断。它的速度快很多倍，准确率略低，因为一个词看不到旁边的词选了什么。"
          + "后面的迭代把最没把握的词元遮住（划线），再预测一次。句子短的时候，结果往往不变；有变化的词元会加框。可以换一个长一些的句子。" },
      { title: "模型是怎样训练的",
        text: "训练时，解码器读的是右移一位的正确译文（教师强制），一次就能训练所有位置；掩码让每个位置都看不到自己要预测的词元。图中的行是要预测的词元，列是读到的词元。使用时它读的是自己的输出，包括错误。"
          + "计划采样让它在训练中也读到一些自己生成的词元。引导注意力用损失函数，或者加在分数上的权重，把交叉注意力图引向给定的对齐。" },
      { title: "束搜索",
        text: "每一步都取概率最高的词元（贪心搜索），可能错过最好的句子；又不可能逐一尝试所有句子。束搜索在每一步保留最好的几个候选。逐步查看这棵树：有的候选起初保留，后来却没有结果。简单的句子里，每一步都是第一名胜出，贪心搜索（束宽为 1）得到同样的译文；难一些的句子里，起初排第二的词元可能胜出：可以输入一个与训练数据不太像的句子，例如 “He will come tomorrow because it rains”，比较束宽 1 和 5。排在后面的候选概率很低，有时会出现 <bos> 这样奇怪的词元。"
          + "概率小于 1，句子越长，乘积越小，所以对数概率之和要除以长度惩罚：长度^α，或者增长较慢的 ((5+长度)/6)^α。α = 0 表示不用惩罚；α 越大，越偏向较长的译文。" },
      { title: "对齐",
        text: "指向译文中的一个词，它的交叉注意力所读取的源词就会亮起。在 “I love apples” 里，“我”读取 “I”，“喜欢”读取 “love”，“苹果”读取 “apples”。"
          + "模型没有词典；它学会对齐，是因为这样更容易预测下一个词元。译文的置信度是校准过的概率，估计译文与参考译文一致的可能性，并不是各词元概率的乘积：如果另一种说法也正确，词元的概率会降低，整句却不一定更差。" },
      { title: "为什么是这个词",
        text: "注意力只说明模型读了什么，不能说明结果由什么决定。这里把所选词的得分分给模型读过的每个词：蓝色的支持它，橙色的反对它。"
          + "份额由积分梯度算出，再用遮挡（每次换掉一个词）核对：两者认为重要的词应当大致相同，但顺序和数值可能不同。在“为什么不是”里填另一个词，问题变了，份额也跟着变。" },
      { title: "动手试试：假设分析",
        text: "注意力权重只是线索，实验才能检验。点击 decoder.0.cross 的一个头，把它关掉。如果译文不变，就比较得分：变化很小，说明这个句子用不到这个头，有别的头和别的层就够了。即使把这一层的头全部关掉，译文也可能不变：其他层的交叉注意力仍在读取源句。"
          + "再让注意力更集中或更分散（分数缩放），或者换一个词，看哪些输出词元会变。" },
      { title: "注意力的代价",
        text: "矩阵的每一格对应一对词元：句子长一倍，格子就是四倍。有两种办法：局部注意力只读邻近的词元；路由注意力让模型学会聚类，只在类内计算。两者都保留 softmax。"
          + "在 regard 的配方（训练设置的文件）里，注意力的种类只是一行设置：full、local、linear 或 routing。" },
      { title: "换一个顺序：线性注意力",
        text: "先把前面的计算换一种写法，用列代替行，结果不变。第 6 步是权重乘以 V，每个词元是一行；改成每个词元一列，分数就是 A = KᵀQ，输出就是 O = V·softmax(A)。如果没有 softmax，V(KᵀQ) = (V·Kᵀ)Q，而 V·Kᵀ 的大小与长度无关，n 个词元的计算量就从 n² 降到 n。"
          + "线性注意力正是如此，用 q 和 k 的正值函数代替 softmax。代价是不够集中：它不能把全部权重放在一个键上。" },
      { title: "图像：ViT",
        text: "图像变成图块的序列。最初的 ViT 把 224×224 像素分成 196 个图块，每块 16×16×3 = 768 个数，投影成一个词元。前面加上类别词元（共 197 个），再加上可学习的位置编码，"
          + "其余交给有 12 个头、每头宽度 64 的编码器；下面的模型可能小一些。注意力展开把各层的注意力相乘，显示哪些图块影响了答案。类别和概率来自正在运行的模型，它可能只训练了很短的时间。" },
      { title: "图像：Swin",
        text: "所有图块之间的注意力，计算量是 n²。Swin 只在窗口内计算注意力，每隔一层把窗口移动一半，信息才能跨过边界；各阶段之间把 2×2 个图块合并，后面的窗口就能看到更大的范围。"
          + "点击一个图块：只有它所在的窗口亮起。这里的概率同样来自正在运行的模型，它可能只训练了很短的时间。" },
      { title: "两个视图：CroCo",
        text: "CroCo 把一个视图的大部分遮住，根据同一场景的另一个视图补全。它的解码器块有自注意力、对另一视图的交叉注意力和前馈网络，各带残差连接。"
          + "要补全一个图块，训练好的模型应当在另一视图里找到同一点，交叉注意力于是变成了匹配；如果模型只训练了很短的时间，匹配就很弱。DUSt3R 和 MASt3R 就建立在这些块之上。" },
      { title: "合在一起",
        text: "再看一遍整个模型。现在你应该能说出每一块读什么、加上什么、为什么需要它。用自己的句子再播放一次，点开不清楚的块，用“复制链接”把看到的视图发给别人。" },
    ],
  },
};
